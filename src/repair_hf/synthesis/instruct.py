"""Instruct: what is the least that must change in the false positive so that it fits the query? (Paper section 3.2.)

In:  (q, fp) of one failure: captions as text, images as data URLs.
Out: an edit instruction. For a caption it begins with the types of error in square brackets,
     `[Count Error]: … Therefore, replace 'two' with 'three'.`; for an image it is free text for an image editing model.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints

from repair_hf.llm import prompts
from repair_hf.llm.client import ChatModel

ERROR_TYPES = ("Object", "Action", "Attribute", "Count", "Relation", "Hallucination")
NO_ERROR = "No"  # of [No Error]; llm/templates/instruct_i2t.md offers it

_BRACKETS = re.compile(r"\s*((?:\[[^\[\]]*\][\s,;+&]*)+)")
# llm/templates/instruct_t2i.md offers "No change."; some models add why, or what stays as it is. Whatever else follows may be a change.
_REASON = r"(?:because|since|as|the (?:caption|query|image|picture)|it|everything|keep|leave|preserve)\b(?:(?!\b(?:but|except|only)\b)[^.;])*"
_NO_CHANGE = re.compile(
    r"\s*no changes?(?: (?:is|are|needs? to be|should be))?(?: (?:needed|necessary|required|made))?(?: to the (?:image|picture))?"
    rf"(?:(?: ?[.,:;–—-])?\s+{_REASON}(?:[.;]\s+{_REASON})*)?[.\s]*",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(r"[\[\],;/|+&]|\band\b")


def error_types(instruction: str) -> list[str]:
    """The types of error that a caption instruction names in the brackets at its beginning, in its order, each once.

    Returns:
        Names out of `ERROR_TYPES`; none for `[No Error]`.

    Raises:
        ValueError: If there are no brackets, or they hold something other than `ERROR_TYPES`.
    """
    brackets = _BRACKETS.match(instruction)
    words = [word.strip() for word in _SEPARATOR.split(brackets[1])] if brackets else []
    names = [re.sub(r"\s+errors?$", "", word, flags=re.IGNORECASE).capitalize() for word in words if word]
    if names == [NO_ERROR]:
        return []
    if not names or not set(names) <= set(ERROR_TYPES):
        raise ValueError(
            "edit_instruction must begin with its error types in square brackets, such as [Count Error, Object Error]:, "
            f"each of them one of {', '.join(ERROR_TYPES)}; it begins with {instruction[:60]!r}"
        )
    return list(dict.fromkeys(names))


def is_no_change(direction: str, instruction: str) -> bool:
    """Whether the instruction says that a second look found nothing to change."""
    if direction == "i2t":
        return not error_types(instruction)
    return _NO_CHANGE.fullmatch(instruction) is not None


def _with_error_types(instruction: str) -> str:
    error_types(instruction)
    return instruction


Instruction = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class CaptionInstruction(BaseModel):
    """How to put a caption right."""

    model_config = ConfigDict(strict=True, frozen=True)

    edit_instruction: Annotated[Instruction, AfterValidator(_with_error_types)]


class ImageInstruction(BaseModel):
    """How to put an image right."""

    model_config = ConfigDict(strict=True, frozen=True)

    edit_instruction: Instruction


async def instruct(chat: ChatModel, direction: str, *, q: str, fp: str) -> str:
    """Ask for the edit instruction of one failure."""
    if direction == "i2t":
        messages = prompts.chat("instruct_i2t", query_image=q, false_positive_caption=fp)
        schema = CaptionInstruction
    else:
        messages = prompts.chat("instruct_t2i", query_caption=q, false_positive_image=fp)
        schema = ImageInstruction
    answer = await chat.ask(messages, stage="instruct", direction=direction, schema=schema)
    return answer.edit_instruction
