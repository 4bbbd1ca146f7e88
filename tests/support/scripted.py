"""A provider that answers like the toy world's oracle, unless a script says otherwise."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from datasets import Dataset
from small_world import World

from repair_hf.llm.asker import Asker
from repair_hf.llm.ledger import Ledger, Reply
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.provider import ProviderError
from repair_hf.records.dataset import load_dropped, load_kept
from repair_hf.synthesis.images import ImageEditor
from repair_hf.toyworld import oracle
from repair_hf.toyworld.editor import WorldEditor

ORACLE = oracle.provider()


class Scripted:
    """Remembers what it was asked.

    Args:
        script: Gets stage and prompt; gives an answer, or None for the oracle's.
        fail_after: Number of answers after which the provider fails.
    """

    def __init__(
        self, script: Callable[[str, str], Any] = lambda stage, shown: None, *, fail_after: int | None = None
    ) -> None:
        self.script, self.fail_after = script, fail_after
        self.requests: list[Mapping] = []

    @property
    def calls(self) -> int:
        return len(self.requests)

    async def __call__(self, request: Mapping) -> Reply:
        await asyncio.sleep(0)
        if self.fail_after is not None and self.calls >= self.fail_after:
            raise ProviderError("out of credit")
        self.requests.append(request)
        shown = shown_in(request)
        answer = self.script(stage_of(shown), shown)
        if answer is None:
            return await ORACLE(request)
        if isinstance(answer, Reply):
            return answer
        return Reply(answer if isinstance(answer, str) else json.dumps(answer), "stop", 10, 5, 0.001, "m")


def shown_in(request: Mapping) -> str:
    """The text of a request's question."""
    return "\n".join(part.get("text", "image") for part in request["messages"][1]["content"])


def stage_of(shown: str) -> str:
    """The stage that a prompt belongs to."""
    labels = {"Edit instruction:": "edit", "Caption to check:": "check", "Ground-truth": "audit"}
    return next((stage for label, stage in labels.items() if label in shown), "instruct")


def synthesize(
    world: World,
    folder: Path,
    provider: Scripted | None = None,
    *,
    failures: Dataset | None = None,
    editor: ImageEditor | None = None,
    concurrency: int = 4,
    **options,
) -> tuple[Dataset, Dataset, dict[str, Any]]:
    """Run a synthesis: records, dropped failures, and its summary."""
    with Ledger(folder / "ledger.sqlite") as ledger:
        request = RequestOptions(concurrency=concurrency)
        asker = Asker(oracle.MODEL, ledger, provider=provider or Scripted(), options=request)
        summary = world.repair(asker, folder, failures, editor=editor or WorldEditor(), **options)
    return load_kept(folder), load_dropped(folder), summary
