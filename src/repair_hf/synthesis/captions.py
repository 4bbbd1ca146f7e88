"""Edit captions with the LLM: ask for M candidates, and take the captions out of the answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from repair_hf.llm import prompts
from repair_hf.llm.answers import AnswerError, RefusedAnswer, UnparsedAnswer
from repair_hf.llm.client import ChatModel
from repair_hf.runtime.texts import TooDeep, UnreadableText, parse_json

TEMPERATURE = 0.7  # candidates must differ, and still follow the instruction
MAX_TOKENS = 256

_QUOTATION_MARKS = {'"': '"', "“": "”", "«": "»", "`": "`"}
_FENCE = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)
_NEW_PARAGRAPH = re.compile(r"\n\s*\n")

# What models say instead of a caption or around it. The patterns are narrow: captions may hold colons or say sorry.
_SORRY = (
    r"(?:(?:I['’]m|I am)(?: very| so)? (?:sorry|afraid)|sorry|(?:my )?apologies|I apologi[sz]e|unfortunately)"
    r"[,.!;:]?(?: but| that)? "
)
_UNABLE = r"I(?: can['’]?t| cannot| can not| won['’]t| will not|(?:['’]m| am) (?:unable|not able) to) "
_TO_DO_IT = (
    r"(?:help(?! but\b| \w+ing\b)|assist|comply|edit|rewrite|rephrase|modify|provide|carry out|apply|follow|process|"
    r"complete|perform|generate|produce|fulfill?|engage|do (?:that|this))\b"
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
    """Ask for edits of a false-positive caption; `image` is the query image as a data URL, to show to the LLM.

    With `together` all are asked for in one request, where the provider can; the prompt is then paid for once.

    Raises:
        AnswerError: If no answer is usable; the error of the first one.
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
        read=partial(clean, source=caption),
    )
    return usable(answers)


def usable(answers: Sequence[str | AnswerError]) -> list[str | None]:
    """Return the texts among several answers; None where there is none.

    Raises:
        AnswerError: If there is no text at all; the error of the first answer.
    """
    errors = [answer for answer in answers if isinstance(answer, AnswerError)]
    if len(errors) == len(answers):
        raise errors[0]
    return [None if isinstance(answer, AnswerError) else answer for answer in answers]


def clean(answer: str, source: str) -> str:
    """Take the caption out of an answer, on one line and without quotation marks, fence, label or remark.

    What looks like a label or a refusal, and stands in `source` (the caption before the edit) too, is kept.

    Raises:
        RefusedAnswer: If the model declines, in English.
        UnparsedAnswer: If there is no single caption: the answer is empty, JSON, or several paragraphs.
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


def _unwrapped(text: str) -> str:
    """Remove fence, bold type and quotation marks; JSON that is not a string becomes empty."""
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1].strip()
    if len(text) > 4 and text.startswith("**") and text.find("**", 2) == len(text) - 2:
        text = text[2:-2].strip()
    if text.startswith(('"', "{", "[")):
        try:  # captions are shown as JSON strings, and some models answer in kind
            said = parse_json(text, mend=lambda text: text.encode("utf-8", "replace").decode())
        except TooDeep:
            said = None
        except UnreadableText:
            said = text
        text = said if isinstance(said, str) else ""
    text = text.strip()
    if len(text) > 1 and _QUOTATION_MARKS.get(text[0]) == text[-1] and text[0] not in text[1:-1]:
        text = text[1:-1].strip()
    return text
