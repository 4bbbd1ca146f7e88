"""What the LLM answers in each step: pydantic models, from which the requested JSON schemas are made.

What an answer decides stands in fields of its own, so the LLM may write in any language.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, StringConstraints, model_validator

ErrorType = Literal["Object", "Action", "Attribute", "Count", "Relation", "Hallucination"]
ERROR_TYPES: tuple[str, ...] = get_args(ErrorType)
Instruction = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Verdict(BaseModel):
    """The auditor's answer. Reasons come first: a model that writes them first decides better."""

    gt_reason: str
    gt_valid: bool
    fp_reason: str
    fp_too_similar: bool

    @property
    def drop_reason(self) -> str | None:
        """Why the failure is dropped; None if it is real."""
        if not self.gt_valid:
            return "gt_invalid"
        return "fp_too_similar" if self.fp_too_similar else None


class Fit(BaseModel):
    """Whether an edit fits its query. The reason comes first, as in a verdict."""

    reason: str
    fits: bool


class EditInstruction(BaseModel):
    """What must change in a false positive, and what kinds of error it has; None if nothing needs to change."""

    error_types: list[ErrorType]
    edit_instruction: Instruction | None

    @model_validator(mode="after")
    def _has_types(self) -> EditInstruction:
        if self.edit_instruction is not None and not self.error_types:
            raise ValueError("error_types must name what is wrong, as edit_instruction corrects it")
        return self


class RequiredEditInstruction(EditInstruction):
    """What must change in a false positive, in any case."""

    edit_instruction: Instruction


def one_line(text: str) -> str:
    """Join the words of a text by single spaces; an error if it has none."""
    words = text.split()
    if not words:
        raise ValueError("there is no text")
    return " ".join(words)


OneLine = Annotated[str, AfterValidator(one_line)]


class Written(BaseModel):
    """A text that the LLM wrote, on one line; None if it declined."""

    answer: OneLine | None
