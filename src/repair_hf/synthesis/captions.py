"""Edit captions: carry out an edit instruction on a false-positive caption.

In:  the caption, its edit instruction and, if asked for, the query image as a data URL.
Out: M candidates, drawn from the LLM with different seeds; None where an answer could not be used.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress

from repair_hf.llm.client import AnswerError, ChatModel
from repair_hf.synthesis import prompts

TEMPERATURE = 0.7  # the candidates must differ, and each must still obey
MAX_TOKENS = 256

_QUOTATION_MARKS = {'"': '"', "“": "”", "«": "»", "`": "`"}
_FENCE = re.compile(r"```\w*\n(.*?)\n?```", re.DOTALL)
_NEW_PARAGRAPH = re.compile(r"\n\s*\n")


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
    if all(isinstance(answer, AnswerError) for answer in answers):
        raise answers[0]
    return [clean(answer) if isinstance(answer, str) else None for answer in answers]


def clean(answer: str) -> str | None:
    """The caption in an answer: on one line, out of the quotation marks or the fence that some models put around it.

    Returns:
        None if there is none: nothing at all, something in JSON, or several paragraphs, of which who knows which is the caption.
    """
    text = answer.strip()
    if fenced := _FENCE.fullmatch(text):
        text = fenced[1].strip()
    if text.startswith(('"', "{", "[")):
        with suppress(ValueError):
            text = json.loads(text)  # captions are shown as strings of JSON, and some models answer in kind
            text = text.encode("utf-8", "replace").decode() if isinstance(text, str) else text  # half a surrogate pair
    if not isinstance(text, str) or _NEW_PARAGRAPH.search(text):
        return None
    caption = " ".join(text.split())
    if len(caption) > 1 and _QUOTATION_MARKS.get(caption[0]) == caption[-1] and caption[0] not in caption[1:-1]:
        caption = caption[1:-1].strip()
    return caption or None
