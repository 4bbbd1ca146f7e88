"""The ledger: every answer and image that was paid for, and what each has cost, in one SQLite file.

A call has one row. Its state says what is known of it:

- `reserved`: about to be sent, or on its way. It counts at the most that it may cost.
- `submitted`: in a batch (see `batch_asker`). It counts at the most that it may cost.
- `answered`: the answer has come, and was written together with its bill.
- `lost`: it may be billed, but no answer came. It counts at the most that it may cost; its question is asked again.

A call is reserved in the transaction that compares the ceilings with all rows. So no number of processes, killed or
not, exceeds a ceiling by what it reserves. The rows survive `kill -9`, though not always a power cut.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from repair_hf.llm.ledger_file import FILE, PATIENCE, Reply, Topic, explained, open_database
from repair_hf.runtime.run_folder import RunStopped

__all__ = ["BudgetSpent", "Ledger", "Reply", "Topic"]

logger = logging.getLogger(__name__)

SLACK = 1e-9  # dollars: sums of binary fractions differ in their last digits
POLL = 0.1  # seconds between two looks at what other calls and processes have done

LOST = "state = 'lost', key = key || '/' || hex(randomblob(8)), owner = NULL, batch = NULL"  # no question has this key


class BudgetSpent(RunStopped):
    """A ceiling is reached; with a higher one the same command goes on."""


class Ledger:
    """A ledger that is open for payments. Use it in one event loop.

    Args:
        path: The file, created if missing; None for one in a temporary folder, for a rehearsal.
        run: Name of the run that pays: its folder, seen from the ledger's. Several runs may share a ledger.
        max_usd: The most that all runs with this ledger may pay, in US dollars; None for no ceiling.
        max_calls: The most answers and images that they may pay for.

    Raises:
        UserError: If the file is no ledger.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        run: str = ".",
        max_usd: float | None = None,
        max_calls: int | None = None,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory() if path is None else None
        self.path = Path(path or f"{self._temporary.name}/{FILE}")  # type: ignore[union-attr]
        self.run = run
        self.max_usd, self.max_calls = max_usd, max_calls
        self.path.parent.mkdir(parents=True, exist_ok=True)
        process = psutil.Process()
        self._owner = f"{process.pid} {process.create_time()} {secrets.token_hex(4)}"
        self._version: int | None = None  # of the file, when the sums below were read
        self._dollars, self._calls = 0.0, 0
        self._highest: dict[str, float] = {}  # bill by model
        with explained(self.path):
            self.database = open_database(self.path)
            self._lose_dead()
            self.database.execute("PRAGMA busy_timeout = 0")  # from here on waiting must not block the event loop

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close()
        if isinstance(error, sqlite3.DatabaseError):
            with explained(self.path):
                raise error

    def close(self) -> None:
        """Close the file. Calls whose replies nobody waits for any more count as lost."""
        with explained(self.path), closing(self.database):
            self.database.execute(f"PRAGMA busy_timeout = {round(PATIENCE * 1000)}")
            self._lose(self._owner)
        if self._temporary is not None:
            self._temporary.cleanup()

    @property
    def folder(self) -> Path:
        """The folder of the ledger, which also has the images that it names."""
        return self.path.parent

    @property
    def total(self) -> tuple[float, int]:
        """Dollars, and answers and images, of all runs, as the ceilings count them."""
        self._refresh()
        return self._dollars, self._calls

    def find(self, key: str) -> Reply | None:
        """Return the answer to a question; None if there is none."""
        wanted = "SELECT text, finish, prompt_tokens, completion_tokens, dollars, answered_by FROM call"
        row = self._one(f"{wanted} WHERE key = ? AND state = 'answered'", key)
        return row and Reply(*row)

    def in_batches(self, model: str) -> int:
        """Return how many questions to a model are in batches that are not collected yet."""
        wanted = "SELECT COUNT(*) FROM call WHERE batch IS NOT NULL AND model = ?"
        return self._one(wanted, model)[0]

    async def pay(
        self, key: str, topic: Topic, worst: float, send: Callable[[], Awaitable[Reply]]
    ) -> tuple[Reply, bool]:
        """Return the answer to a question, and whether it was paid now: the ledger's answer, or what `send` brings.

        `worst` is the most that it may cost, in dollars. If the ceilings only lack what other calls have reserved,
        their bills are awaited. An error of `send` counts as a lost answer, unless its `may_be_billed` is False.

        Raises:
            BudgetSpent: If a ceiling does not allow this call.
        """
        while (shortage := await self.reserve(key, topic, worst)) is not None:
            if (reply := self.find(key)) is not None:
                return reply, False
            if not shortage.may_pass:
                raise BudgetSpent(shortage.reason)
            await asyncio.sleep(POLL)
            async with self.transaction():
                self._lose_dead()
        try:
            reply = await send()
        except BaseException as error:
            await self.give_up(key, is_lost=getattr(error, "may_be_billed", True))
            raise
        await self.answer(key, topic, reply)
        return reply, True

    async def reserve(self, key: str, topic: Topic, worst: float, batch: str | None = None) -> Shortage | None:
        """Write the row of a call that is about to be sent, or to be put into a batch.

        Returns:
            None if it is written; else why not.
        """
        async with self.transaction():
            same = self._one("SELECT state, owner FROM call WHERE key = ?", key)
            if same is not None:
                elsewhere = "A question is in a batch of another run. Collect it first, with --batch."
                return Shortage(elsewhere, may_pass=same != ("submitted", None))
            self._refresh()
            dollars = max(worst, self._highest.get(topic.model, 0.0))
            reason = self._shortage(dollars)
            if reason is not None:
                return Shortage(reason, may_pass=self._one("SELECT 1 FROM call WHERE owner IS NOT NULL") is not None)
            state = "reserved" if batch is None else "submitted"
            self.database.execute(_RESERVE, (key, self.run, *topic, state, dollars, batch, self._owner))
            self._dollars += dollars
            self._calls += 1
            return None

    async def answer(self, key: str, topic: Topic, reply: Reply) -> None:
        """Write an answer with its bill; without a known bill it counts at the most that it may cost.

        It is written even if another process has given the call up meanwhile: it is paid for.
        """
        async with self.transaction(is_paid=True):
            row = self._one("SELECT worst FROM call WHERE key = ?", key)
            self.database.execute(_ANSWER, (key, self.run, *topic, *reply))
            reserved = row[0] if row else 0.0
            dollars = reserved if reply.dollars is None else reply.dollars
            self._dollars += dollars - reserved
            self._calls += row is None
            self._highest[topic.model] = max(self._highest.get(topic.model, 0.0), reply.dollars or 0.0)

    async def give_up(self, key: str, *, is_lost: bool) -> None:
        """Let a question be asked again that brought no answer; if `is_lost`, it counts at the most it may cost."""
        change = f"UPDATE call SET {LOST}" if is_lost else "DELETE FROM call"
        async with self.transaction(is_paid=True):
            self.database.execute(f"{change} WHERE key = ? AND state IN ('reserved', 'submitted')", (key,))
            self._version = None

    async def forget(self, key: str) -> None:
        """Let a question be asked again whose answer is gone, such as a deleted file. What it has cost stays."""
        async with self.transaction():
            self.database.execute(f"UPDATE call SET {LOST} WHERE key = ? AND state = 'answered'", (key,))

    @asynccontextmanager
    async def transaction(self, *, is_paid: bool = False) -> AsyncIterator[None]:
        """Begin to write, and commit at the end. Nothing may be awaited inside.

        Raises:
            RunStopped: If another program keeps the file locked; what is paid waits for it.
        """
        begin = time.monotonic()
        while not self.database.in_transaction:
            try:
                self.database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                if time.monotonic() > begin + PATIENCE:
                    if not is_paid:
                        raise RunStopped(
                            f"Another program, such as a viewer of SQLite files, has locked {self.path}. Close it, "
                            "and run the same command again: every answer so far is kept."
                        ) from error
                    begin = time.monotonic()
                    logger.warning("Another program has locked %s; a paid answer waits to be written.", self.path)
                await asyncio.sleep(POLL / 5)
        with self.database:
            yield

    def _shortage(self, dollars: float) -> str | None:
        """Describe the ceiling that a call of so many dollars would exceed."""
        later = "Every answer so far is kept. Rerun with a higher ceiling to resume."
        if self.max_usd is not None and self._dollars + dollars > self.max_usd + SLACK:
            return (
                f"--max-usd {self.max_usd:g} is reached: ${self._dollars:,.2f} are paid or reserved, and the next "
                f"request may cost ${dollars:,.4f}. {later}"
            )
        if self.max_calls is not None and self._calls >= self.max_calls:
            return f"--max-calls {self.max_calls} is reached: {self._calls} answers and images are paid. {later}"
        return None

    def _refresh(self) -> None:
        """Read the sums of all rows again, if another process has written since."""
        (version,) = self._one("PRAGMA data_version")
        if version != self._version:
            self._version = version
            sums = "SELECT model, TOTAL(COALESCE(dollars, worst)), COUNT(*), MAX(dollars) FROM call GROUP BY model"
            rows = self.database.execute(sums).fetchall()
            self._dollars = sum(dollars for _, dollars, _, _ in rows)
            self._calls = sum(calls for _, _, calls, _ in rows)
            self._highest = {model: highest or 0.0 for model, _, _, highest in rows}

    def _lose_dead(self) -> None:
        """Count what killed processes had on their way as lost."""
        owners = self.database.execute("SELECT DISTINCT owner FROM call WHERE owner IS NOT NULL").fetchall()
        for (owner,) in owners:
            if owner != self._owner and not _is_alive(owner):
                self._lose(owner)

    def _lose(self, owner: str) -> None:
        """End a process's open calls: those on their way are lost, those for a batch were never sent."""
        self.database.execute("DELETE FROM call WHERE owner = ? AND state = 'submitted'", (owner,))
        self.database.execute(f"UPDATE call SET {LOST} WHERE owner = ?", (owner,))
        self._version = None

    def _one(self, wanted: str, *values: Any) -> Any:
        return self.database.execute(wanted, values).fetchone()


class Shortage(NamedTuple):
    """Why a call cannot be reserved; it `may_pass` when other calls are answered."""

    reason: str
    may_pass: bool


_RESERVE = """
INSERT INTO call (key, run, stage, direction, model, prompts, state, worst, batch, owner)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ANSWER = """
INSERT INTO call (key, run, stage, direction, model, prompts, state, worst, text, finish, prompt_tokens,
    completion_tokens, dollars, answered_by)
VALUES (?, ?, ?, ?, ?, ?, 'answered', 0, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO UPDATE SET state = 'answered', text = excluded.text, finish = excluded.finish,
    prompt_tokens = excluded.prompt_tokens, completion_tokens = excluded.completion_tokens,
    dollars = excluded.dollars, answered_by = excluded.answered_by, batch = NULL, owner = NULL
"""


def _is_alive(owner: str) -> bool:
    """Return whether the process that reserved a call still runs on this machine."""
    pid, started, _ = owner.split()
    try:
        process = psutil.Process(int(pid))
        return abs(process.create_time() - float(started)) < 10 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
