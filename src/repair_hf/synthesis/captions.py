"""Edit captions with the LLM: ask for M candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel

from repair_hf.llm.answers import AnswerError, RefusedAnswer
from repair_hf.llm.client import ChatModel

TEMPERATURE = 0.7  # candidates must differ, and still follow the instruction
MAX_TOKENS = 256


def one_line(text: str) -> str:
    """Join the words of a text by single spaces; an error if it has none."""
    if not (words := text.split()):
        raise ValueError("there is no text")
    return " ".join(words)


class Written(BaseModel):
    """A text that the LLM wrote, on one line; None if it declined."""

    answer: Annotated[str, AfterValidator(one_line)] | None


async def edit_caption(
    chat: ChatModel,
    caption: str,
    instruction: str,
    *,
    candidates: int,
    seed: int,
    image: str | None = None,
) -> list[str | None]:
    """Ask for edits of a false-positive caption; `image` is the query image, to show to the LLM.

    Raises:
        AnswerError: If no answer is usable; the error of the first one.
    """
    messages = chat.prompts.chat(
        "edit_i2t", query_image=image, false_positive_caption=caption, edit_instruction=instruction
    )
    return await write(chat, messages, "edit", candidates=candidates, seed=seed)


async def write(chat: ChatModel, messages: list[dict], stage: str, *, candidates: int, seed: int) -> list[str | None]:
    """Ask for several texts, as `usable` returns them; errors are those of `usable`."""
    answers = await chat.ask_many(
        messages,
        samples=candidates,
        stage=stage,
        direction="i2t",
        temperature=TEMPERATURE,
        max_tokens=MAX_TOKENS,
        seed=seed,
        schema=Written,
    )
    return usable(answers)


def usable(answers: Sequence[Any]) -> list[str | None]:
    """Return the texts among several answers, each a `Written` or an error; None where there is none.

    Raises:
        AnswerError: If there is no text at all: the error of the first answer, or a refusal.
    """
    texts = [answer.answer if isinstance(answer, Written) else None for answer in answers]
    if not any(texts):
        raise answers[0] if isinstance(answers[0], AnswerError) else RefusedAnswer("the model declined")
    return texts
