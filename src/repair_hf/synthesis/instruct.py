"""Instruct: what must change in the false positive, at least, so that it fits the query? (Paper section 3.2.)

An instruction for a caption begins with its error types, `[Count Error]: … Therefore, replace 'two' with 'three'.`; an
instruction for an image is free text for an image editor.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, StringConstraints

from repair_hf.llm import prompts
from repair_hf.llm.client import ChatModel

ErrorType = Literal["Object", "Action", "Attribute", "Count", "Relation", "Hallucination"]
ERROR_TYPES: tuple[str, ...] = get_args(ErrorType)
NO_ERROR = "No"  # from [No Error], which llm/templates/instruct_i2t.md offers

_BRACKETS = re.compile(r"\s*((?:\[[^\[\]]*\][\s,;+&]*)+)")
# llm/templates/instruct_t2i.md offers "No change."; some models add why, or what stays. Anything else may be a change.
_REASON = (
    r"(?:because|since|as|the (?:caption|query|image|picture)|it|everything|keep|leave|preserve)\b"
    r"(?:(?!\b(?:but|except|only)\b)[^.;])*"
)
_NO_CHANGE = re.compile(
    r"\s*no changes?(?: (?:is|are|needs? to be|should be))?(?: (?:needed|necessary|required|made))?"
    r"(?: to the (?:image|picture))?"
    rf"(?:(?: ?[.,:;–—-])?\s+{_REASON}(?:[.;]\s+{_REASON})*)?[.\s]*",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(r"[\[\],;/|+&]|\band\b")


def error_types(instruction: str) -> list[str]:
    """The error types in the brackets at the beginning of a caption instruction, each once; none for `[No Error]`.

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
            "edit_instruction must begin with its error types in square brackets, such as [Count Error]:, each of "
            f"them one of {', '.join(ERROR_TYPES)}; it begins with {instruction[:60]!r}"
        )
    return list(dict.fromkeys(names))


def is_no_change(direction: str, instruction: str) -> bool:
    """Whether the instruction says that nothing needs to change."""
    if direction == "i2t":
        return not error_types(instruction)
    return _NO_CHANGE.fullmatch(instruction) is not None


def _with_error_types(instruction: str) -> str:
    error_types(instruction)
    return instruction


Instruction = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class CaptionInstruction(BaseModel):
    """How to correct a caption."""

    edit_instruction: Annotated[Instruction, AfterValidator(_with_error_types)]


class ImageInstruction(BaseModel):
    """How to correct an image."""

    edit_instruction: Instruction


async def instruct(chat: ChatModel, direction: str, *, q: str, fp: str) -> str:
    """Ask for the edit instruction of one failure. `q` and `fp` are captions, or images as data URLs."""
    schema: type[BaseModel]
    if direction == "i2t":
        messages = prompts.chat("instruct_i2t", query_image=q, false_positive_caption=fp)
        schema = CaptionInstruction
    else:
        messages = prompts.chat("instruct_t2i", query_caption=q, false_positive_image=fp)
        schema = ImageInstruction
    answer: Any = await chat.ask(messages, stage="instruct", direction=direction, schema=schema)
    return answer.edit_instruction
