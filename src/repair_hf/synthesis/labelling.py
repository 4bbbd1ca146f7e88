"""Labelling: in what were the false-positive images wrong? (The paper's analysis pass, appendix "Failure Characterization".)

In:  t2i records, whose instructions are free text; an LLM. (Instructions for captions name their kinds of error themselves.)
Out: one or several of `ERROR_TYPES` per record, as JSON lines.

It changes nothing of the records. Its prompt is no part of `prompt_digest`, which names the words that records were made by.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from tqdm.auto import tqdm

from repair_hf.llm import prompts
from repair_hf.llm.client import AnswerError, ChatModel
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.synthesis.stream import GRACE

WORKERS = 64
MAX_TOKENS = 256

Kind = Literal["Object", "Action", "Attribute", "Count", "Relation", "Hallucination"]


class ErrorTypes(BaseModel):
    """What an image was wrong in."""

    model_config = ConfigDict(strict=True, frozen=True)

    error_types: Annotated[list[Kind], Field(min_length=1)]


def label_images(chat: ChatModel, records: Iterable[Mapping[str, str]], path: Path) -> int:
    """Ask for the kinds of error of records, and write them down.

    Args:
        chat: The LLM, with the journal that remembers its answers.
        records: `record_id`, `q_text`, `edit_instruction` of t2i records.
        path: The file of labels; rewritten whole.

    Returns:
        How many records got no label, because no answer was of use.

    Raises:
        RunStopped: If the provider or the budget gave out; the same call goes on.
    """
    labels, total = asyncio.run(_label_all(chat, list(records)))
    lines = (json.dumps({"record_id": name, "error_types": kinds}) for name, kinds in sorted(labels.items()))
    write_atomically(path, "".join(f"{line}\n" for line in lines))
    return total - len(labels)


def ask_about(record: Mapping[str, str]) -> list[dict]:
    """The messages that ask for the kinds of error of a record."""
    return prompts.chat("label_t2i", query_caption=record["q_text"], edit_instruction=record["edit_instruction"])


async def _label_all(chat: ChatModel, records: list[Mapping[str, str]]) -> tuple[dict[str, list[str]], int]:
    labels: dict[str, list[str]] = {}
    queue = iter(records)

    async def work() -> None:
        for record in queue:
            try:
                answer = await chat.ask(
                    ask_about(record), stage="label", direction="t2i", schema=ErrorTypes, max_tokens=MAX_TOKENS
                )
                labels[record["record_id"]] = list(dict.fromkeys(answer.error_types))
            except AnswerError:
                pass  # the journal holds what came; the caller is told how many
            bar.update()

    with tqdm(total=len(records), desc="Labelling", unit=" records", disable=None) as bar:
        try:
            await asyncio.gather(*(work() for _ in range(WORKERS)))
        finally:
            with suppress(TimeoutError):  # answers that are on their way are paid for already
                await asyncio.wait_for(chat.drain(), GRACE)
    return labels, len(records)
