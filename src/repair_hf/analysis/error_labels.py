"""Label the error types of false-positive images. (The paper's appendix "Failure Characterization".)

Instructions for captions name their error types; those for images are free text, so an LLM reads them. The records do
not change, and the prompt is not part of `prompt_digest`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field
from tqdm.auto import tqdm

from repair_hf.llm.client import AnswerError, ChatModel
from repair_hf.llm.prompts import SHIPPED, Prompts
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.synthesis.instruct import ErrorType
from repair_hf.synthesis.workers import WORKERS, work_through

MAX_TOKENS = 256


class ErrorTypes(BaseModel):
    """What is wrong in an image."""

    error_types: Annotated[list[ErrorType], Field(min_length=1)]


def label_images(chat: ChatModel, records: Iterable[Mapping[str, str]], path: Path) -> int:
    """Ask for the error types of t2i records, rewrite `path` as JSON lines, and count those without a usable answer.

    Raises:
        RunStopped: If the provider failed or the budget is spent; the same call continues from there.
    """
    wanted = list(records)
    labels = asyncio.run(_label_all(chat, wanted))
    lines = (json.dumps({"record_id": name, "error_types": kinds}) for name, kinds in sorted(labels.items()))
    write_atomically(path, "".join(f"{line}\n" for line in lines))
    if len(labels) < len(wanted):
        chat.ledger.allow_attempts(chat.attempts + 1)
    return len(wanted) - len(labels)


def ask_about(record: Mapping[str, str], prompts: Prompts = SHIPPED) -> list[dict]:
    """The messages that ask for the error types of a record."""
    return prompts.chat("label_t2i", query_caption=record["q_text"], edit_instruction=record["edit_instruction"])


async def _label_all(chat: ChatModel, records: list[Mapping[str, str]]) -> dict[str, list[str]]:
    labels: dict[str, list[str]] = {}
    queue = iter(records)

    async def work() -> None:
        for record in queue:
            try:
                answer: Any = await chat.ask(
                    ask_about(record, chat.prompts),
                    stage="label",
                    direction="t2i",
                    schema=ErrorTypes,
                    max_tokens=MAX_TOKENS,
                )
                labels[record["record_id"]] = list(dict.fromkeys(answer.error_types))
            except AnswerError:
                pass  # the ledger holds the answer; the caller gets the number of missing labels
            bar.update()

    with tqdm(total=len(records), desc="Labelling", unit=" records", disable=None) as bar:
        await work_through(chat, [work() for _ in range(WORKERS)])
    return labels
