"""Batches of questions that a provider answers within a day, at a lower price.

One run submits questions (`Deferred`), a later run collects the answers into the ledger. A question in a batch has a
row there from the start; `batch_id` says how far its batch has come:

1. `draft:...`: its request is in the memory of this process. If the process dies, the row is deleted.
2. `file:...`: the file is with the provider, by this id. A batch may have been created from it.
3. the provider's id of the batch.

A run may die between any two steps. The next run then looks for a file without a batch among the provider's batches
before it sends anything, so no batch is submitted twice and no paid answer is lost.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path
from typing import Any, NamedTuple

from repair_hf.llm.batch_api import BatchAPI, BatchRefused, Finished
from repair_hf.llm.errors import ProviderError, RejectedRequest
from repair_hf.llm.ledger import BudgetSpent, Ledger, Reply, Topic
from repair_hf.llm.ledger_file import query
from repair_hf.llm.sending import REJECTIONS, Retries
from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

MOST_REQUESTS = 20_000  # per batch; providers allow at least 50,000 requests and 200 MB
MOST_BYTES = 100 * 2**20


class Deferred(Exception):
    """The answer comes with a batch, in a later run."""


class OpenBatches(NamedTuple):
    """Submitted batches of a ledger: model, number of requests and number of batches."""

    model: str
    requests: int
    batches: int

    def __str__(self) -> str:
        return f"{self.requests:,} requests are with {self.model} in {self.batches} batches"


class Batches:
    """Submits batches in one run and collects them in a later one.

    Raises:
        UserError: If LiteLLM supports no batch API of the model's provider, or the ledger holds batches of another
            model.
    """

    def __init__(
        self, model: str, ledger: Ledger, *, base_url: str | None = None, retries: Retries | None = None
    ) -> None:
        self.model, self.ledger = model, ledger
        self._api = BatchAPI(model, base_url=base_url, retries=retries or Retries())
        self._most = MOST_REQUESTS
        self._begin_draft()
        wanted = "SELECT model FROM call WHERE batch_id IS NOT NULL AND model != ? LIMIT 1"
        if (row := ledger.database.execute(wanted, (model,)).fetchone()) is not None:
            raise UserError(
                f"{ledger.path}: submitted batches of {row[0]} are not collected yet. Give --llm {row[0]} to collect "
                f"them first. {_GIVE_UP.format(ledger.path)}"
            )

    @property
    def waiting(self) -> int:
        """Number of requests that are submitted, or about to be."""
        wanted = "SELECT COUNT(*) FROM call WHERE batch_id IS NOT NULL"
        return self.ledger.database.execute(wanted).fetchone()[0]

    async def defer(self, key: str, request: dict[str, Any], topic: Topic, worst: float) -> None:
        """Add a question to the next batch, unless the ceilings first need the bills of those before it.

        A batch that is full is submitted.

        Raises:
            BudgetSpent: If a ceiling does not allow this question, and no bill will change that.
        """
        line = self._api.line(key, request)
        if len(self._lines) >= self._most or self._size + len(line) > MOST_BYTES:
            await self.submit()
        if self.ledger.add(key, worst, topic, "submitted", self._draft):
            self._lines.append(line)
            self._size += len(line)
        elif (shortage := self.ledger.shortage(worst)[0]) and not self.waiting:
            raise BudgetSpent(shortage)

    async def collect(self) -> set[str]:
        """Fetch the answers of finished batches; return their keys. Call it before the first `defer`.

        Raises:
            ProviderError: If the provider accepted no request of a batch; all other answers are kept.
        """
        faults: list[ProviderError] = []
        keys: set[str] = set()
        wanted = "SELECT batch_id, COUNT(*) FROM call WHERE batch_id IS NOT NULL AND owner IS NULL GROUP BY batch_id"
        rows = self.ledger.database.execute(wanted).fetchall()
        for batch_id, count in rows:
            found = await self._find(batch_id)
            try:
                finished = None if found is None else await self._api.fetch(found)
            except BatchRefused as fault:
                if fault.is_too_large and count > 1:
                    self._most = min(self._most, count // 2)
                    logger.info("%s Batches of %d requests are submitted from now on.", fault, self._most)
                else:
                    faults.append(fault)
                finished = Finished([], 0)
            if found is not None and finished is not None:
                keys |= self._settle(found, finished, faults)
        if faults:
            raise ProviderError(
                f"{faults[0]} ({len(faults)} such faults.) Every answer so far is kept; "
                "the same command submits the rest again."
            )
        return keys

    async def submit(self) -> None:
        """Submit the deferred questions."""
        draft, lines = self._draft, self._lines
        self._begin_draft()
        if not lines:
            return
        file = f"file:{await self._api.upload(draft, b''.join(lines))}"
        self._move(draft, file)
        batch = await self._api.hand_in(file.removeprefix("file:"))
        self._move(file, batch)
        self.ledger.database.execute("UPDATE call SET owner = NULL WHERE batch_id = ?", (batch,))
        logger.info("%s: submitted batch %s of %d requests.", self.model, batch, len(lines))

    def _begin_draft(self) -> None:
        self._draft = f"draft:{secrets.token_hex(8)}"
        self._lines: list[bytes] = []
        self._size = 0

    async def _find(self, batch_id: str) -> str | None:
        """Return the provider's id of a batch; None if it never had it, and its questions may be asked again."""
        if not batch_id.startswith("file:"):
            return batch_id
        found = await self._api.find(batch_id.removeprefix("file:"))
        if found is None:
            self._give_up(batch_id)
        else:
            self._move(batch_id, found)
        return found

    def _settle(self, batch_id: str, finished: Finished, faults: list[ProviderError]) -> set[str]:
        """Keep a batch's answers and return their keys; its unanswered requests may be asked again."""
        wanted = "SELECT key, stage, direction, prompts FROM call WHERE batch_id = ?"
        rows = self.ledger.database.execute(wanted, (batch_id,)).fetchall()
        topics = {key: Topic(stage, direction, self.model, *rest) for key, stage, direction, *rest in rows}
        outcomes = {key: outcome for key, outcome in finished.answers if key in topics}  # or another process was first
        replies = {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, Reply)}
        for key, reply in replies.items():
            self.ledger.answer(key, reply)
        rejections = {key: outcome for key, outcome in outcomes.items() if isinstance(outcome, RejectedRequest)}
        has_answers = bool(replies) or self.ledger.has_answers_of(self.model)
        are_final = has_answers and len(rejections) <= max(REJECTIONS, len(replies))
        if not are_final:
            faults += rejections.values()
        others = {key: fault for key, fault in outcomes.items() if key not in replies and key not in rejections}
        faults += [fault for fault in others.values() if isinstance(fault, ProviderError)]
        lost = [key for key, fault in others.items() if getattr(fault, "may_be_billed", False)]
        missing = [key for key in topics if key not in outcomes]
        self.ledger.lose([*lost, *missing[: finished.lost]])
        if missing:
            logger.warning("%s: batch %s ended without %d of its answers.", self.model, batch_id, len(missing))
        self._give_up(batch_id)
        for key, rejection in rejections.items() if are_final else ():  # each is at fault alone
            self.ledger.reject(key, str(rejection), topics[key])
        return set(replies)

    def _give_up(self, batch_id: str) -> None:
        """Let questions of a batch be asked again that have no answer."""
        self.ledger.database.execute("DELETE FROM call WHERE batch_id = ?", (batch_id,))

    def _move(self, before: str, after: str) -> None:
        self.ledger.database.execute("UPDATE call SET batch_id = ? WHERE batch_id = ?", (after, before))


_GIVE_UP = "To give them up: sqlite3 {} \"DELETE FROM call WHERE state = 'submitted'\"."


def open_batches(folder: Path) -> OpenBatches | None:
    """Return what is in submitted batches of a folder's ledger; None if nothing is."""
    wanted = "SELECT MAX(model), COUNT(*), COUNT(DISTINCT batch_id) FROM call WHERE batch_id IS NOT NULL"
    return next((OpenBatches(*row) for row in query(folder, wanted) if row[1]), None)


def refuse_if_waiting(ledger: Ledger) -> None:
    """Raise an error if a submitted batch is left, before its questions are asked in another way."""
    if waiting := open_batches(ledger.folder):
        raise UserError(
            f"{ledger.path}: {waiting}, not collected yet, and asking again would pay for them twice. Give --batch to "
            f"collect them. {_GIVE_UP.format(ledger.path)}"
        )
