"""Batches: questions that are handed in together and answered within a day, at half the price.

In:  questions that the journal cannot answer.
Out: nothing at once (`Deferred`); in a later run the answers, for the journal.

A batch goes through: a draft (its requests, on disk), its intent (a state file), its file at the provider, the batch made of that file
(the state file holds the ids of both as they come), its answers in the journal. A run may die between any two of them. A file without a
batch's id is looked up among the provider's batches before anything else is sent, so that no batch is handed in twice, and what was paid
for is collected by whichever run comes next.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from repair_hf.llm.batch_api import Answered, BatchAPI, BatchRefused
from repair_hf.llm.failures import PassingFailure, ProviderError
from repair_hf.llm.provider import Reply
from repair_hf.llm.retries import Retries
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped, write_atomically

logger = logging.getLogger(__name__)

MOST_REQUESTS = 20_000  # of one batch; the providers' limits are 50,000 and 200 MB, or more
MOST_BYTES = 100 * 2**20


class Deferred(Exception):
    """The answer comes with a batch, in a later run: neither the row's fault nor the run's end."""


@dataclass(frozen=True)
class Question:
    """One request that nobody has answered yet.

    Args:
        key: Its name in the journal.
        request: What the provider would be sent; empty where its answer has come.
        stage: What it is for; for the accounts.
        direction: `i2t` or `t2i`; for the accounts.
        dollars: What it may cost at worst, at the price of batches; what the budget sets aside for it.
        guess: How many tokens its prompt was taken for; its bill corrects the guesses to come. 0 where that is not on record.
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
    """A batch at the provider, or on its way there; what its state file holds."""

    name: str
    model: str
    file: str | None = None
    id: str | None = None
    questions: dict[str, list] = field(default_factory=dict)  # key -> stage, direction, dollars, guess


class Batches:
    """What one run hands in and a later one collects.

    Args:
        model: LiteLLM model id.
        folder: Where drafts and states are kept. One run at a time may use it.
        base_url: Of a custom endpoint.
        retries: How long to believe in a provider that fails.

    Raises:
        UserError: If LiteLLM reaches no batch API of the model's provider, or the folder holds batches of another model.
    """

    def __init__(
        self, model: str, folder: str | Path, *, base_url: str | None = None, retries: Retries | None = None
    ) -> None:
        self.model, self.folder = model, Path(folder)
        self._api = BatchAPI(model, base_url=base_url, retries=retries or Retries())
        self._drafts: list[_Draft] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob("*.jsonl"):  # of a run that died before it handed them in
            left.unlink()
        states = [json.loads(path.read_text(encoding="ascii")) for path in sorted(self.folder.glob("*.json"))]
        self._open = {state["name"]: _Batch(**{"model": model} | state) for state in states}
        if others := {batch.model for batch in self._open.values()} - {model}:
            other = min(others)
            raise UserError(
                f"{self.folder}: batches of {other} that were handed in are not collected yet: give --llm {other} to collect them first. "
                f"To give them up, delete {self.folder}."
            )
        self._held = {key for batch in self._open.values() for key in batch.questions}

    @property
    def waiting(self) -> int:
        """How many requests are with the provider, or about to be."""
        return len(self._held)

    @property
    def promised(self) -> float:
        """What the requests that are with the provider may cost at worst, in dollars."""
        return sum(dollars for batch in self._open.values() for _, _, dollars, *_ in batch.questions.values())

    def holds(self, key: str) -> bool:
        """Whether the answer to this request comes with a batch that is deferred or handed in already."""
        return key in self._held

    def defer(self, question: Question) -> None:
        """Keep a question for the next batch, unless a batch already holds it."""
        if self.holds(question.key):
            return
        line = self._api.line(question.key, question.request)
        if not self._drafts or self._drafts[-1].is_full(len(line)):
            self._drafts.append(_Draft(self.folder))
        self._drafts[-1].add(question, line)
        self._held.add(question.key)

    async def collect(self, keep: Keep) -> None:
        """Fetch what has been answered meanwhile. Call it before the first `defer`.

        Args:
            keep: Writes an answer into the journal, unless it is there already: a run may have died while it collected. Raises
                `ProviderError` if what it says is not this question's fault.

        Raises:
            ProviderError: If the provider did not accept a batch or its requests; what it did answer is kept all the same.
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
                f"{faults[0]} ({len(faults)} such faults.) Every answer so far is kept; the same command hands the rest in again."
            )

    async def submit(self) -> None:
        """Hand in what was deferred."""
        while self._drafts:
            draft = self._drafts.pop(0)
            batch = _Batch(secrets.token_hex(8), self.model, questions=draft.questions)
            self._open[batch.name] = batch
            self._save(batch)  # before anything is sent: see the top of this file
            batch.file = await self._api.upload(batch.name, draft.finish())
            self._save(batch)
            batch.id = await self._api.hand_in(batch.file)
            self._save(batch)
            logger.info("%s: handed in batch %s of %d requests.", self.model, batch.id, len(batch.questions))

    def stopped(self) -> RunStopped:
        """What to end a run with that can go on only when the provider has answered."""
        return RunStopped(
            f"{self.waiting:,} requests are with {self.model} in {len(self._open)} batches, to be answered within a day. "
            "The same command collects what is answered by then, and goes on."
        )

    def _settle(self, batch: _Batch, answers: list[Answered], keep: Keep) -> list[ProviderError]:
        """Keep a batch's answers and forget the batch: what it did not answer may be asked again."""
        faults = []
        # rejections last: where something is answered, they are the faults of their own requests
        for answer in sorted(answers, key=Answered.is_rejection):
            if answer.key not in batch.questions:
                logger.warning("Batch %s answers a request that is not ours; it is left alone.", batch.id)
            elif answer.reply is not None:
                try:
                    keep(Question(answer.key, {}, *batch.questions[answer.key]), answer.reply)
                except ProviderError as fault:
                    faults.append(fault)
            elif isinstance(answer.fault, PassingFailure):
                logger.info("Batch %s: a request failed and is asked again: %s", batch.id, answer.fault)
            else:
                faults.append(answer.fault)
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


def refuse_if_waiting(folder: str | Path) -> None:
    """Check that no batch is out before its questions are asked in another way.

    Raises:
        UserError: If one is.
    """
    if states := list(Path(folder).glob("*.json")):
        raise UserError(
            f"{folder}: {len(states)} batches that were handed in are not collected yet, and asking anew would pay for them twice: "
            f"give --batch to collect them. To give them up, delete {folder}."
        )


class _Draft:
    """Requests on disk that were not handed in yet: with their images they would not fit in memory."""

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
        """The requests, which leave the disk."""
        self._file.close()
        lines = self.path.read_bytes()
        self.path.unlink()
        return lines
