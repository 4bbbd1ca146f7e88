"""The ledger: every paid answer and image of a run, and what each has cost, in one SQLite file.

A call has one row. Its state says what is known of it:

- `reserved`: about to be sent, or on its way. It counts as its worst case.
- `received`: its process died between the body and the reply. It counts as its worst case, and the body is read.
- `answered`: the answer has come; it was written down together with its bill.
- `lost`: it may be billed, but no answer came. It counts as its worst case, and its question is asked again.
- `rejected`: the provider does not accept this request. It costs nothing, and is not asked again.
- `submitted`: it is in a batch (see `batches`). It counts as its worst case.

A call is reserved before it is sent, by a statement that compares the ceilings with all rows. So no number of
processes, killed or not, exceeds a ceiling. The rows survive `kill -9`, though not always a power cut.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple

import filelock

from repair_hf.llm.calls import CALL, Call, Reply, Topic, believed, format_dollars, packed, read_call
from repair_hf.llm.ledger_file import connect, correct_sums, damaged
from repair_hf.llm.loading import KEEP
from repair_hf.runtime.redaction import holds_key
from repair_hf.runtime.run_folder import RunStopped

__all__ = ["BudgetSpent", "Call", "Ceilings", "Ledger", "Reply", "Topic"]

FIRST_ATTEMPTS = 2  # at a usable answer, in the first run of a folder
SLACK = 1e-9  # dollars: sums of binary fractions differ in their last digits
POLL = 0.1  # seconds between two looks at the bills that have come


class BudgetSpent(RunStopped):
    """A ceiling is reached; with a higher one the same command goes on."""


class Ceilings(NamedTuple):
    """The most that all runs with one ledger may pay, in US dollars and in answers and images; None for no ceiling."""

    max_usd: float | None = None
    max_calls: int | None = None


class Ledger:
    """A ledger that is open for payments.

    Args:
        path: The file, created if missing; `:memory:` for a rehearsal.
        run: Name of the run that pays: its folder, seen from the ledger's. Several runs may share a ledger.

    Attributes:
        ceilings: They hold for all runs and processes with this ledger.
    """

    def __init__(self, path: str | Path = ":memory:", *, run: str = ".", ceilings: Ceilings | None = None) -> None:
        self.path, self.run, self.ceilings = Path(path), run, ceilings or Ceilings()
        self._owner = secrets.token_hex(8)  # of this process's rows that are not settled
        self._measured: set[str] = set()  # models that this process has had an answer of
        self._under_way: Counter[str] = Counter()  # calls by model
        self.database = connect(path)
        self._lock = None if str(path) == ":memory:" else filelock.FileLock(self._lock_file(self._owner))
        if self._lock is not None:
            self._lock.acquire()
        self.database.execute("INSERT OR IGNORE INTO run (name, attempts) VALUES (?, ?)", (run, FIRST_ATTEMPTS))
        correct_sums(self.database, self.path)
        self.settle_dead()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Calls whose replies nobody waits for any more count as lost."""
        with suppress(sqlite3.OperationalError):  # on a full disk; the next run that opens it does the same
            self._settle(self._owner)
        with suppress(sqlite3.OperationalError):  # unless another process has it open, one file holds all
            self.database.execute("PRAGMA busy_timeout = 0")
            self.database.execute("PRAGMA journal_mode = DELETE")
        self.database.close()
        if self._lock is not None:
            self._lock.release()
            Path(self._lock.lock_file).unlink(missing_ok=True)

    @property
    def folder(self) -> Path:
        """The folder of the ledger, which also has the images that it names."""
        return self.path.parent

    def find(self, key: str) -> Call | None:
        """Return a call that is answered, rejected or in a batch; None if it may be asked."""
        row = self.database.execute(f"SELECT {CALL} FROM call WHERE key = ?", (key,)).fetchone()
        try:
            return None if row is None or row[1] == "reserved" else read_call(row)
        except ValueError as error:
            raise damaged(self.path, error) from error

    def has_answers_of(self, model: str) -> bool:
        """Return whether a model has answered before."""
        wanted = "SELECT 1 FROM call WHERE model = ? AND state = 'answered' LIMIT 1"
        return self.database.execute(wanted, (model,)).fetchone() is not None

    async def pay(
        self,
        key: str,
        topic: Topic,
        worst: Callable[[], float],
        send: Callable[[], Awaitable[Reply]],
        read: Callable[[bytes], Awaitable[Reply]] | None = None,
    ) -> Call:
        """Reserve the worst case of a call, send it, and write its reply with its bill.

        If the call is answered, rejected or in a batch already, nothing is sent. The body of the reply is written
        before anything reads it; a body that a killed process left is given to `read`. Without a reply the call counts
        as lost, unless the error says that it cannot be billed (`may_be_billed`). If the ceilings only lack what other
        calls have reserved, wait for their bills; `worst` is then called again, because bills correct it.

        Raises:
            BudgetSpent: If a ceiling does not allow this call.
        """
        call, at_most = await self._reserve(key, worst, topic)
        if call.state not in ("reserved", "received"):
            return call
        self._under_way[topic.model] += 1
        before = KEEP.set(partial(self._keep, key))
        try:
            reply = await read(call.body) if read is not None and call.body is not None else await send()
        except BaseException as error:
            self._lose(key) if getattr(error, "may_be_billed", True) else self._release(key)
            raise
        else:
            reply = believed(reply, at_most=at_most)
            self.answer(key, reply, topic, at_most)
            self._measured.add(topic.model)
            return Call(key, "answered", reply, is_new=True)
        finally:
            KEEP.reset(before)
            self._under_way[topic.model] -= 1

    def answer(self, key: str, reply: Reply, topic: Topic | None = None, worst: float = 0.0) -> None:
        """Write an answer and its bill. Without a bill the worst case counts.

        With `topic` it is written even if another process has given its row up meanwhile: it is paid for.
        """
        changed = self.database.execute(
            "UPDATE call SET state = 'answered', dollars = ?, prompt_tokens = ?, completion_tokens = ?, "
            "answered_by = ?, reply = ?, body = NULL, owner = NULL, batch_id = NULL "
            "WHERE key = ? AND state IN ('reserved', 'submitted')",
            (reply.dollars, reply.prompt_tokens, reply.completion_tokens, reply.answered_by, packed(reply), key),
        ).rowcount
        if changed or topic is None:
            return
        name = key if self.database.execute("SELECT 1 FROM call WHERE key = ?", (key,)).fetchone() is None else None
        name = name or f"{key}/{secrets.token_hex(8)}"
        self.database.execute(_ADD_PAID, (name, self.run, *topic, worst, self._owner))
        self.answer(name, reply)

    def reject(self, key: str, reason: str, topic: Topic) -> Call:
        """Note that the provider never accepts a request, and return its call."""
        reply = Reply(reason, "rejected", 0, 0, 0.0, topic.model)
        self.database.execute(
            "INSERT INTO call (key, run, stage, direction, model, prompts, state, worst, dollars, calls, reply) "
            "VALUES (?, ?, ?, ?, ?, ?, 'rejected', 0, 0, 0, ?) ON CONFLICT (key) DO UPDATE "
            "SET state = 'rejected', worst = 0, dollars = 0, calls = 0, reply = excluded.reply, batch_id = NULL "
            "WHERE state = 'submitted'",
            (key, self.run, *topic, packed(reply)),
        )
        return Call(key, "rejected", reply)

    def ask_again(self, key: str, is_gone: Callable[[], bool]) -> None:
        """Let a question be asked again if its answer is gone, such as a deleted file; what it has cost stays.

        Others see one change: who pays writes the file first, and then the answer.
        """
        with self.database:
            self.database.execute("BEGIN IMMEDIATE")
            if (call := self.find(key)) is not None and call.state in ("answered", "rejected") and is_gone():
                self.database.execute(f"UPDATE call SET key = {_FRESH_KEY} WHERE key = ?", (key,))

    def settle_dead(self) -> None:
        """Count what killed processes had reserved as lost, and give up their batches that were not submitted."""
        rows = self.database.execute(_OTHERS, (self._owner,))
        for (owner,) in rows.fetchall():
            lock = filelock.FileLock(self._lock_file(owner), blocking=False)
            with suppress(filelock.Timeout), lock:
                self._settle(owner)
                Path(lock.lock_file).unlink(missing_ok=True)

    @property
    def total(self) -> tuple[float, int]:
        """Dollars, and answers and images, of all runs, as the ceilings count them."""
        return self.database.execute(f"SELECT {_TOTAL}").fetchone()

    def add(self, key: str, worst: float, topic: Topic, state: str, batch_id: str | None = None) -> bool:
        """Write a row that counts as its worst case, unless a ceiling does not allow it or the key has one."""
        max_usd, max_calls = (inf if most is None else most for most in self.ceilings)
        labels = (key, self.run, *topic, state, worst, self._owner, batch_id)
        return self.database.execute(_ADD, (*labels, max_usd + SLACK - worst, max_calls)).rowcount == 1

    def shortage(self, worst: float) -> tuple[str | None, bool]:
        """Describe the ceiling that one more call could exceed, and say whether calls are on their way."""
        (most, most_calls), shortage = self.ceilings, None
        dollars, calls, is_busy = self.database.execute(f"SELECT {_TOTAL}, {_IS_BUSY}").fetchone()
        if most is not None and dollars + worst > most + SLACK:
            paid, next_one = format_dollars(dollars), format_dollars(worst)
            shortage = f"--max-usd {most:g} is reached: {paid} are paid, and the next request may cost {next_one}."
        elif most_calls is not None and calls >= most_calls:
            shortage = f"--max-calls {most_calls} is reached: {calls} answers and images are paid or on their way."
        return shortage and f"{shortage} Every answer so far is kept. Rerun with a higher ceiling to resume.", is_busy

    @property
    def attempts(self) -> int:
        """How many attempts at a usable answer this run may make, those of its earlier runs included."""
        return self.database.execute("SELECT attempts FROM run WHERE name = ?", (self.run,)).fetchone()[0]

    def allow_attempts(self, count: int) -> None:
        """Let the runs that start from now on make so many attempts."""
        self.database.execute("UPDATE run SET attempts = ? WHERE name = ?", (count, self.run))

    async def _reserve(self, key: str, worst: Callable[[], float], topic: Topic) -> tuple[Call, float]:
        while True:
            dollars = worst()
            # The first paid call of a model goes alone: its bill corrects the worst cases of the others.
            is_known = topic.model in self._measured or not self._under_way[topic.model]
            is_free = self.ceilings.max_usd is None or not dollars or is_known
            if is_free and self.add(key, dollars, topic, "reserved"):
                return Call(key, "reserved"), dollars
            if (call := self.find(key)) is not None and (call.state != "received" or self._adopt(key)):
                return call, dollars
            shortage, is_busy = self.shortage(dollars)
            if shortage and not is_busy:
                raise BudgetSpent(shortage)
            await asyncio.sleep(POLL)
            self.settle_dead()

    def _keep(self, key: str, body: bytes) -> None:
        """Write down a body before it is read, unless it echoes a key."""
        if not holds_key(body.decode("utf-8", "replace")):
            self.database.execute("UPDATE call SET body = ? WHERE key = ? AND owner = ?", (body, key, self._owner))

    def _adopt(self, key: str) -> bool:
        """Take a body that a killed process has received; False if another process was faster."""
        wanted = "UPDATE call SET state = 'reserved', owner = ? WHERE key = ? AND state = 'received'"
        return self.database.execute(wanted, (self._owner, key)).rowcount == 1

    def _settle(self, owner: str) -> None:
        with self.database:
            self.database.execute("BEGIN IMMEDIATE")
            wanted = "WHERE owner = ? AND state = 'reserved' AND body IS"
            self.database.execute(f"UPDATE call SET state = 'received', owner = NULL {wanted} NOT NULL", (owner,))
            self.database.execute(f"UPDATE call SET {_LOST} {wanted} NULL", (owner,))
            self.database.execute("DELETE FROM call WHERE owner = ? AND batch_id LIKE 'draft:%'", (owner,))
            self.database.execute("UPDATE call SET owner = NULL WHERE owner = ?", (owner,))

    def lose(self, keys: Iterable[str]) -> None:
        """Count submitted calls as lost: their batch ended without their answers."""
        wanted = f"UPDATE call SET {_LOST}, batch_id = NULL WHERE key = ? AND state = 'submitted'"
        self.database.executemany(wanted, [(key,) for key in keys])

    def _lose(self, key: str) -> None:
        self.database.execute(f"UPDATE call SET {_LOST} WHERE key = ? AND owner = ?", (key, self._owner))

    def _release(self, key: str) -> None:
        self.database.execute("DELETE FROM call WHERE key = ? AND owner = ?", (key, self._owner))

    def _lock_file(self, owner: str) -> str:
        return f"{self.path}.{owner}.lock"


_FRESH_KEY = "key || '/' || hex(randomblob(8))"  # no question has it
_LOST = f"key = {_FRESH_KEY}, state = 'lost', owner = NULL"
_OTHERS = "SELECT DISTINCT owner FROM call WHERE owner IS NOT NULL AND owner != ?"
_TOTAL = "(SELECT TOTAL(dollars) FROM run), (SELECT COALESCE(SUM(calls), 0) FROM run)"
_IS_BUSY = "EXISTS (SELECT 1 FROM call WHERE owner IS NOT NULL AND state = 'reserved')"
_ADD_PAID = """
INSERT INTO call (key, run, stage, direction, model, prompts, calls, state, worst, owner)
VALUES (?, ?, ?, ?, ?, ?, 1, 'reserved', ?, ?)
"""
_ADD = """
INSERT INTO call (key, run, stage, direction, model, prompts, calls, state, worst, owner, batch_id)
SELECT ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ? FROM (SELECT TOTAL(dollars) AS dollars, TOTAL(calls) AS calls FROM run)
WHERE dollars <= ? AND calls < ? ON CONFLICT (key) DO NOTHING
"""
