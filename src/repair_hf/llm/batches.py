"""Batches of questions that a provider answers within a day, at half the price.

One run submits questions (`Deferred`), a later run collects the answers into the journal. The steps of a batch: a
draft with its requests on disk, a state file, its file at the provider, the batch created from that file (the state
file holds both ids), its answers in the journal. A run may die between any two steps. The next run then looks for a
file without a batch among the provider's batches before it sends anything, so no batch is submitted twice and no paid
answer is lost.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from repair_hf.llm.batch_api import Answer, BatchAPI, BatchRefused
from repair_hf.llm.failures import PassingFailure, ProviderError, Retries
from repair_hf.llm.journal import REJECTED
from repair_hf.llm.provider import Reply
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped, write_atomically
from repair_hf.runtime.texts import read_json

logger = logging.getLogger(__name__)

MOST_REQUESTS = 20_000  # per batch; providers allow at least 50,000 requests and 200 MB
MOST_BYTES = 100 * 2**20


class Deferred(Exception):
    """The answer comes with a batch, in a later run."""


class BatchesOpen(RunStopped):
    """A run ends until a provider has answered its batches; `open` are these, by the folders of their runs."""

    def __init__(self, open: Mapping[Path, OpenBatches]) -> None:
        self.open = dict(open)
        requests, batches = sum(each.requests for each in open.values()), sum(each.batches for each in open.values())
        models = " and ".join(sorted({each.model for each in self.open.values()}))
        super().__init__(
            f"{requests:,} requests are with {models} in {batches} batches, to be answered within a day. Rerun "
            "the same command to collect the answers."
        )


class OpenBatches(NamedTuple):
    """Submitted batches of a run: model, number of requests, number of batches, and their worst case in dollars."""

    model: str
    requests: int
    batches: int
    dollars: float


@dataclass(frozen=True)
class Question:
    """A request without an answer yet.

    Args:
        request: Request in the OpenAI chat format; empty once its answer has come.
        dollars: Worst case at the price of batches, which the budget sets aside.
        guess: Guessed tokens of the prompt, which its bill corrects; 0 if not on record.
    """

    key: str
    request: dict[str, Any]
    stage: str
    direction: str
    dollars: float = 0.0
    guess: int = 0


Keep = Callable[[Question, Reply], None]


@dataclass
class _Batch:
    """A batch that is submitted or about to be: the content of its state file."""

    name: str
    model: str
    file: str | None = None
    id: str | None = None
    questions: dict[str, list] = field(default_factory=dict)  # key -> stage, direction, dollars, guess


class Batches:
    """Submits batches in one run and collects them in a later one.

    Args:
        folder: Folder of drafts and state files. Only one run at a time may use it.

    Raises:
        UserError: If LiteLLM supports no batch API of the model's provider, or the folder holds batches of another
            model.
    """

    def __init__(
        self, model: str, folder: str | Path, *, base_url: str | None = None, retries: Retries | None = None
    ) -> None:
        self.model, self.folder = model, Path(folder)
        self._api = BatchAPI(model, base_url=base_url, retries=retries or Retries())
        self._drafts: list[_Draft] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob("*.jsonl"):  # of a run that died before it submitted them
            left.unlink()
        states = [read_json(path) for path in sorted(self.folder.glob("*.json"))]
        self._open = {state["name"]: _Batch(**{"model": model} | state) for state in states}
        if others := {batch.model for batch in self._open.values()} - {model}:
            other = min(others)
            raise UserError(
                f"{self.folder}: submitted batches of {other} are not collected yet. "
                f"Give --llm {other} to collect them first; to give them up, delete {self.folder}."
            )
        self._held = {key for batch in self._open.values() for key in batch.questions}

    @property
    def waiting(self) -> int:
        """Number of requests that are submitted, or about to be."""
        return len(self._held)

    @property
    def promised(self) -> float:
        """Worst case of the submitted requests, in dollars."""
        return sum(dollars for batch in self._open.values() for _, _, dollars, *_ in batch.questions.values())

    def holds(self, key: str) -> bool:
        """Return whether a batch holds this request already."""
        return key in self._held

    def defer(self, question: Question) -> None:
        """Add a question to the next batch; check `holds` first."""
        line = self._api.line(question.key, question.request)
        if not self._drafts or self._drafts[-1].is_full(len(line)):
            self._drafts.append(_Draft(self.folder))
        self._drafts[-1].add(question, line)
        self._held.add(question.key)

    async def collect(self, keep: Keep) -> None:
        """Fetch the answers of finished batches. Call it before the first `defer`.

        `keep` writes an answer into the journal, unless it is there already. It raises `ProviderError` if the answer
        shows a fault that does not concern this question alone.
        """
        faults: list[ProviderError] = []
        for batch in list(self._open.values()):
            if batch.id is None and batch.file is not None:
                batch.id = await self._api.find(batch.file)
            if batch.id is None:  # the run died before the provider had it
                self._close(batch)
                continue
            self._save(batch)
            try:
                answers = await self._api.fetch(batch.id)
            except BatchRefused as fault:
                faults.append(fault)
                answers = []
            if answers is not None:
                faults += self._settle(batch, answers, keep)
        if faults:
            raise ProviderError(
                f"{faults[0]} ({len(faults)} such faults.) Every answer so far is kept; "
                "the same command submits the rest again."
            )

    async def submit(self) -> None:
        """Submit the deferred questions."""
        while self._drafts:
            draft = self._drafts.pop(0)
            batch = _Batch(secrets.token_hex(8), self.model, questions=draft.questions)
            self._open[batch.name] = batch
            self._save(batch)  # before anything is sent: see the module's docstring
            batch.file = await self._api.upload(batch.name, draft.finish())
            self._save(batch)
            batch.id = await self._api.hand_in(batch.file)
            self._save(batch)
            logger.info("%s: submitted batch %s of %d requests.", self.model, batch.id, len(batch.questions))

    def stopped(self) -> BatchesOpen:
        """Return the exception that ends a run until the provider has answered."""
        return BatchesOpen(open_batches([self.folder.parent]))

    def _settle(self, batch: _Batch, answers: list[Answer], keep: Keep) -> list[ProviderError]:
        """Keep a batch's answers and forget the batch; its unanswered requests may be asked again."""
        faults: list[ProviderError] = []
        # rejections last: if the provider answered others, each concerns its own request
        for key, outcome in sorted(answers, key=lambda answer: getattr(answer[1], "finish", None) == REJECTED):
            if key not in batch.questions:
                logger.warning("Batch %s answers a request that is not ours; it is ignored.", batch.id)
            elif isinstance(outcome, Reply):
                try:
                    keep(Question(key, {}, *batch.questions[key]), outcome)
                except ProviderError as fault:
                    faults.append(fault)
            elif isinstance(outcome, PassingFailure):
                logger.info("Batch %s: a request failed and is asked again: %s", batch.id, outcome)
            else:
                faults.append(outcome)
        self._close(batch)
        return faults

    def _save(self, batch: _Batch) -> None:
        write_atomically(self._path(batch), json.dumps(vars(batch)))

    def _close(self, batch: _Batch) -> None:
        del self._open[batch.name]
        self._held -= set(batch.questions)
        self._path(batch).unlink()

    def _path(self, batch: _Batch) -> Path:
        return self.folder / f"{batch.name}.json"


def open_batches(runs: Iterable[Path]) -> dict[Path, OpenBatches]:
    """Return the runs among some folders that have submitted batches, and what is in them."""
    found = {}
    for run in runs:
        states = [read_json(path) for path in sorted((run / "batches").glob("*.json"))]
        asked = [question for state in states for question in state["questions"].values()]
        if states:
            found[run] = OpenBatches(states[0].get("model", ""), len(asked), len(states), sum(one[2] for one in asked))
    return found


def refuse_if_waiting(folder: str | Path) -> None:
    """Raise an error if a submitted batch is left, before its questions are asked in another way."""
    if states := list(Path(folder).glob("*.json")):
        raise UserError(
            f"{folder}: {len(states)} submitted batches are not collected yet, and asking again would pay for them "
            f"twice. Give --batch to collect them; to give them up, delete {folder}."
        )


class _Draft:
    """Requests on disk that are not submitted yet: with their images they would not fit in memory."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"draft-{secrets.token_hex(4)}.jsonl"
        self.questions: dict[str, list] = {}
        self._file: BinaryIO = self.path.open("wb")

    def is_full(self, more: int) -> bool:
        return len(self.questions) == MOST_REQUESTS or self._file.tell() + more > MOST_BYTES

    def add(self, question: Question, line: bytes) -> None:
        self._file.write(line)
        self.questions[question.key] = [question.stage, question.direction, question.dollars, question.guess]

    def finish(self) -> bytes:
        """Return the requests and delete the file."""
        self._file.close()
        lines = self.path.read_bytes()
        self.path.unlink()
        return lines
