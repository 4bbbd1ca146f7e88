"""Edit captions: carry out an edit instruction on a false-positive caption.

In:  the caption, its edit instruction and, if asked for, the query image as a data URL.
Out: M candidates, drawn from the LLM with different seeds; None where an answer could not be used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress

from repair_hf.llm import prompts
from repair_hf.llm.answers import AnswerError, RefusedAnswer, UnparsedAnswer
from repair_hf.llm.client import ChatModel

TEMPERATURE = 0.7  # the candidates must differ, and each must still obey
MAX_TOKENS = 256

_QUOTATION_MARKS = {'"': '"', "“": "”", "«": "»", "`": "`"}
_FENCE = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)
_NEW_PARAGRAPH = re.compile(r"\n\s*\n")

# What models say in place of a caption or around it. Narrow: a caption may well hold a colon or parentheses, or say that somebody is sorry.
_SORRY = r"(?:(?:I['’]m|I am)(?: very| so)? (?:sorry|afraid)|sorry|(?:my )?apologies|I apologi[sz]e|unfortunately)[,.!;:]?(?: but| that)? "
_UNABLE = r"I(?: can['’]?t| cannot| can not| won['’]t| will not|(?:['’]m| am) (?:unable|not able) to) "
_TO_DO_IT = (
    r"(?:help(?! but\b| \w+ing\b)|assist|comply|edit|rewrite|rephrase|modify|provide|carry out|apply|follow|process|complete|perform|"
    r"generate|produce|fulfill?|engage|do (?:that|this))\b"
)
_REFUSAL = re.compile(
    rf"(?:{_SORRY})?(?:as an AI(?: language)?(?: model| assistant)?, )?{_UNABLE}{_TO_DO_IT}|"
    rf"{_SORRY}(?:the|this|your) (?:instruction|request|caption|image)\b",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"(?:(?:sure|certainly|of course|okay)[,.!]*\s+)?(?:here(?:['’]s| is)\s+)?(?:(?:the|your|an?)\s+)?\**"
    r"(?:(?:new|corrected|edited|revised|updated|modified|rewritten|rephrased|final|false)\s+)*caption\**\s*:\**\s*",
    re.IGNORECASE,
)
_DONE = r"(?:replaced|changed|removed|added|swapped|edited|corrected|kept|deleted|inserted|substituted)\b"
_REMARK = re.compile(
    rf"\s*\n\s*(?:\((?:note\b|(?:I(?:['’]ve| have)? )?{_DONE}).*\)|\**(?:note|explanation|changes?(?: made)?)\**:.*)$",
    re.IGNORECASE | re.DOTALL,
)


async def edit_caption(
    chat: ChatModel,
    caption: str,
    instruction: str,
    *,
    candidates: int,
    seed: int,
    image: str | None = None,
    together: bool = False,
) -> list[str | None]:
    """Ask for M edited captions.

    Args:
        chat: Who edits.
        caption: The false positive.
        instruction: What to change in it.
        candidates: M.
        seed: Fixes the draws; the m-th candidate is the same in every run.
        image: The query image, shown to the editor.
        together: Ask for all M in one request, which pays for the prompt once, where the provider can.

    Raises:
        AnswerError: If not one of the answers could be used; the first one's fault.
    """
    messages = prompts.chat(
        "edit_i2t", query_image=image, false_positive_caption=caption, edit_instruction=instruction
    )
    answers = await chat.ask_many(
        messages,
        samples=candidates,
        together=together,
        stage="edit",
        direction="i2t",
        temperature=TEMPERATURE,
        max_tokens=MAX_TOKENS,
        seed=seed,
    )
    return read_captions(answers, caption)


def read_captions(answers: Sequence[str | AnswerError], source: str) -> list[str | None]:
    """The captions in several answers, or None where there is none.

    Args:
        answers: What was said, or why it cannot be used.
        source: The caption that they were made from.

    Raises:
        AnswerError: If there is no caption in any; the first one's fault.
    """
    found = [_read(answer, source) for answer in answers]
    if all(isinstance(caption, AnswerError) for caption in found):
        raise found[0]
    return [caption if isinstance(caption, str) else None for caption in found]


def clean(answer: str, source: str) -> str:
    """The caption in an answer: on one line, without the quotation marks, the fence, the label or the remark that some models put around it.

    Args:
        answer: What was said.
        source: The caption that it was made from. What looks like a label or a refusal and stands there too is part of the caption.

    Raises:
        RefusedAnswer: If the model declines, in English.
        UnparsedAnswer: If there is no caption: nothing at all, something in JSON, or several paragraphs, of which who knows which it is.
    """
    text = answer.strip()
    if _REFUSAL.match(text) and not _REFUSAL.match(source):
        raise RefusedAnswer(f"the model declined: {text[:200]!r}")
    if not _REMARK.search(source):
        text = _REMARK.sub("", text)
    text = _unwrapped(text)
    if (label := _LABEL.match(text)) and not _LABEL.match(source):
        text = _unwrapped(text[label.end() :])
    if not text or _NEW_PARAGRAPH.search(text):
        raise UnparsedAnswer(f"the answer is no caption: {answer[:200]!r}")
    return " ".join(text.split())


def _read(answer: str | AnswerError, source: str) -> str | AnswerError:
    try:
        return clean(answer, source) if isinstance(answer, str) else answer
    except AnswerError as fault:
        return fault


def _unwrapped(text: str) -> str:
    """Out of its fence, its bold type and its quotation marks; nothing is left of what is JSON but no string."""
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1].strip()
    if len(text) > 4 and text.startswith("**") and text.find("**", 2) == len(text) - 2:
        text = text[2:-2].strip()
    if text.startswith(('"', "{", "[")):
        with suppress(ValueError):
            said = json.loads(text)  # captions are shown as strings of JSON, and some models answer in kind
            text = said.encode("utf-8", "replace").decode() if isinstance(said, str) else ""  # half a surrogate pair
    text = text.strip()
    if len(text) > 1 and _QUOTATION_MARKS.get(text[0]) == text[-1] and text[0] not in text[1:-1]:
        text = text[1:-1].strip()
    return text
