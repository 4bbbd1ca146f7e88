"""The steps of a repair that ask the LLM: audit a failure, instruct an edit, edit a caption. (Paper section 3.)

A failure is real if its annotation holds (`gt_valid`), and its false positive is not a correct answer too
(`fp_too_similar`). What an answer decides stands in fields of its own, so the LLM may write in any language.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, StringConstraints, model_validator

from repair_hf.llm.client import AnswerError, ChatModel, RefusedAnswer

FIELDS = {  # of the prompts: role -> field, by direction
    "i2t": {"q": "query_image", "gt": "ground_truth_caption", "fp": "false_positive_caption"},
    "t2i": {"q": "query_caption", "gt": "ground_truth_image", "fp": "false_positive_image"},
}
TEMPERATURE = 0.7  # of edits: candidates must differ, and still follow the instruction
MAX_TOKENS = 256  # of a caption

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
    if not (words := text.split()):
        raise ValueError("there is no text")
    return " ".join(words)


class Written(BaseModel):
    """A text that the LLM wrote, on one line; None if it declined."""

    answer: Annotated[str, AfterValidator(one_line)] | None


async def audit(chat: ChatModel, direction: str, *, q: str, gt: str, fp: str) -> Verdict:
    """Audit one failure. `q`, `gt` and `fp` are captions, or images (`ImageURL`)."""
    messages = _messages(chat, "audit", direction, q=q, gt=gt, fp=fp)
    verdict: Any = await chat.ask(messages, stage="audit", direction=direction, schema=Verdict)
    return verdict


async def instruct(chat: ChatModel, direction: str, *, q: str, fp: str) -> tuple[str | None, list[str]]:
    """Ask what must change in the false positive, at least, so that it fits the query. Arguments as of `audit`.

    Returns:
        The instruction, None if nothing needs to change, which `always_instruct` of the prompts rules out; and the
        error types, each once.
    """
    messages = _messages(chat, "instruct", direction, q=q, fp=fp)
    schema = RequiredEditInstruction if chat.prompts.always_instruct else EditInstruction
    answer: Any = await chat.ask(messages, stage="instruct", direction=direction, schema=schema)
    return answer.edit_instruction, list(dict.fromkeys(answer.error_types))


async def edit_caption(
    chat: ChatModel, caption: str, instruction: str, *, candidates: int, seed: int, image: str | None = None
) -> list[str | None]:
    """Ask for edits of a false-positive caption; `image` is the query image, to show to the LLM.

    Raises:
        AnswerError: If no answer is usable; the error of the first one.
    """
    shown = {"query_image": image, "false_positive_caption": caption, "edit_instruction": instruction}
    messages = chat.prompts.chat("edit_i2t", **shown)
    return await write(chat, messages, "edit", candidates=candidates, seed=seed)


async def write(chat: ChatModel, messages: list[dict], stage: str, *, candidates: int, seed: int) -> list[str | None]:
    """Ask for several texts, as `usable` returns them; errors are those of `usable`."""
    how: dict[str, Any] = {"temperature": TEMPERATURE, "max_tokens": MAX_TOKENS, "seed": seed, "schema": Written}
    return usable(await chat.ask_many(messages, samples=candidates, stage=stage, direction="i2t", **how))


def usable(answers: Sequence[Any]) -> list[str | None]:
    """Return the texts among several answers, each a `Written` or an error; None where there is none.

    Raises:
        AnswerError: If there is no text at all: the error of the first answer, or a refusal.
    """
    texts = [answer.answer if isinstance(answer, Written) else None for answer in answers]
    if not any(texts):
        raise answers[0] if isinstance(answers[0], AnswerError) else RefusedAnswer("the model declined")
    return texts


def _messages(chat: ChatModel, step: str, direction: str, **shown: str) -> list[dict]:
    return chat.prompts.chat(
        f"{step}_{direction}", **{FIELDS[direction][role]: value for role, value in shown.items()}
    )
