"""Instruct: what must change in the false positive, at least, so that it fits the query? (Paper section 3.2.)

The error types of a caption, and whether anything needs to change, have fields of their own in the answer: no wording
is recognised, so that the LLM may write in any language.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, StringConstraints, model_validator

from repair_hf.llm.client import ChatModel

ErrorType = Literal["Object", "Action", "Attribute", "Count", "Relation", "Hallucination"]
ERROR_TYPES: tuple[str, ...] = get_args(ErrorType)

Instruction = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class ImageInstruction(BaseModel):
    """How to correct an image; None if nothing needs to change."""

    edit_instruction: Instruction | None


class RequiredImageInstruction(ImageInstruction):
    """How to correct an image, in any case."""

    edit_instruction: Instruction


class CaptionInstruction(BaseModel):
    """How to correct a caption, and what kinds of error it has."""

    error_types: list[ErrorType]
    edit_instruction: Instruction | None

    @model_validator(mode="after")
    def _has_types(self) -> CaptionInstruction:
        if self.edit_instruction is not None and not self.error_types:
            raise ValueError("error_types must name what is wrong, as edit_instruction corrects it")
        return self


class RequiredCaptionInstruction(CaptionInstruction):
    """How to correct a caption, in any case."""

    edit_instruction: Instruction


async def instruct(chat: ChatModel, direction: str, *, q: str, fp: str) -> tuple[str | None, list[str]]:
    """Ask for the edit instruction of one failure. `q` and `fp` are captions, or images (`ImageURL`).

    Returns:
        The instruction, None if nothing needs to change, which `always_instruct` of the prompts rules out; and of a
        caption the error types, each once.
    """
    schema: type[BaseModel]
    is_required = chat.prompts.always_instruct
    if direction == "i2t":
        messages = chat.prompts.chat("instruct_i2t", query_image=q, false_positive_caption=fp)
        schema = RequiredCaptionInstruction if is_required else CaptionInstruction
    else:
        messages = chat.prompts.chat("instruct_t2i", query_caption=q, false_positive_image=fp)
        schema = RequiredImageInstruction if is_required else ImageInstruction
    answer: Any = await chat.ask(messages, stage="instruct", direction=direction, schema=schema)
    return answer.edit_instruction, list(dict.fromkeys(getattr(answer, "error_types", ())))
