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
import logging
import secrets
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import filelock

from repair_hf.llm.calls import CALL, Call, Reply, Topic, format_dollars, packed, read_call, without_usage
from repair_hf.llm.ledger_file import LedgerLocked, check_log, connect, damaged, lock_of, owners_of
from repair_hf.runtime.redaction import holds_key
from repair_hf.runtime.run_folder import RunStopped

__all__ = ["BudgetSpent", "Call", "Ceilings", "Ledger", "Reply", "Topic"]

logger = logging.getLogger(__name__)

SLACK = 1e-9  # dollars: sums of binary fractions differ in their last digits
POLL = 0.1  # seconds between two looks at the bills that have come
LEAKED_KEY = "leaked_key"  # in place of why the model stopped: the answer held an API key
BEYOND = 100  # times the worst case: nothing is learned from such a bill


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
        self._highest: defaultdict[str, float] = defaultdict(float)  # bills above their reserve, by model
        self._measured: set[str] = set()  # models that this process has had an answer of
        check_log(self.path)
        self.database = connect(path)
        self._lock = None if str(path) == ":memory:" else filelock.FileLock(lock_of(self.path, self._owner))
        if self._lock is not None:
            self._lock.acquire()
        self._settle_dead(owners_of(self.path))

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Calls whose replies nobody waits for any more count as lost."""
        with suppress(sqlite3.OperationalError, LedgerLocked):  # or a full disk; the next run does the same
            self._settle(self._owner)
            self._settle_dead(owners_of(self.path))
        if self._lock is not None:  # before its log goes: a lock without one is taken for that of a killed process
            Path(self._lock.lock_file).unlink(missing_ok=True)
            self._lock.release()
        with suppress(sqlite3.OperationalError, LedgerLocked):  # unless others have it open, one file holds all
            self.database.execute("PRAGMA busy_timeout = 0")
            self.database.execute("PRAGMA journal_mode = DELETE")
        self.database.close()

    @property
    def folder(self) -> Path:
        """The folder of the ledger, which also has the images that it names."""
        return self.path.parent

    @property
    def total(self) -> tuple[float, int]:
        """Dollars, and answers and images, of all runs, as the ceilings count them."""
        return self._one("SELECT dollars, calls FROM total")

    def find(self, key: str) -> Call | None:
        """Return a call that is answered, rejected or in a batch; None if it may be asked."""
        return self.find_all([key]).get(key)

    def find_all(self, keys: Sequence[str]) -> dict[str, Call]:
        """Return, by key, the calls that are answered, rejected or in a batch."""
        wanted = f"SELECT {CALL} FROM call WHERE key IN ({', '.join('?' * len(keys))}) AND state != 'reserved'"
        try:
            return {row[0]: read_call(row) for row in self.database.execute(wanted, keys)}
        except (ValueError, TypeError, sqlite3.OperationalError) as error:
            raise damaged(self.path, error) from error

    def has_answers_of(self, model: str) -> bool:
        """Return whether a model has answered before."""
        return self._one("SELECT 1 FROM call WHERE model = ? AND state = 'answered' LIMIT 1", model) is not None

    async def reserve(self, key: str, worst: Callable[[], float], topic: Topic) -> tuple[Call, float]:
        """Reserve the most that a call may cost; return the call, and that amount in dollars.

        The state is `reserved` if it is to be sent now; with a `body`, that is to be read in place of sending. If the
        ceilings only lack what other calls have reserved, wait for their bills. `worst` is then called again.

        Raises:
            BudgetSpent: If a ceiling does not allow this call.
        """
        while True:
            dollars = max(worst(), self._highest[topic.model])
            if self._may_send(topic.model, dollars) and self.add(key, dollars, topic, "reserved"):
                return Call(key, "reserved"), dollars
            call = self.find(key)
            if call is not None and call.state != "received":
                return call, dollars
            if call is not None and self._adopt(key):
                return Call(key, "reserved", body=call.body), dollars
            shortage, is_busy = self.shortage(dollars)
            if shortage and not is_busy:
                raise BudgetSpent(shortage)
            await asyncio.sleep(POLL)
            self._settle_dead()

    def _may_send(self, model: str, dollars: float) -> bool:
        """Let the first paid call of a model go alone: its bill corrects the reserves of the others."""
        if self.ceilings.max_usd is None or not dollars or model in self._measured:
            return True
        wanted = "SELECT 1 FROM call WHERE owner = ? AND model = ? AND state = 'reserved'"
        return self._one(wanted, self._owner, model) is None

    def add(self, key: str, worst: float, topic: Topic, state: str, batch_id: str | None = None) -> bool:
        """Write a row that counts as its worst case, unless a ceiling does not allow it or the key has one."""
        (most, most_calls), labels = self.ceilings, (key, self.run, *topic, state, worst, self._owner, batch_id)
        left = (None if most is None else most + SLACK - worst, most_calls)
        return self.database.execute(_ADD, (*labels, *left)).rowcount == 1

    def shortage(self, worst: float) -> tuple[str | None, bool]:
        """Describe the ceiling that one more call could exceed, and say whether calls are on their way."""
        (most, most_calls), shortage, (dollars, calls) = self.ceilings, None, self.total
        if most is not None and dollars + worst > most + SLACK:
            paid, next_one = format_dollars(dollars), format_dollars(worst)
            shortage = f"--max-usd {most:g} is reached: {paid} are paid, and the next request may cost {next_one}."
        elif most_calls is not None and calls >= most_calls:
            shortage = f"--max-calls {most_calls} is reached: {calls} answers and images are paid or on their way."
        is_busy = self._one("SELECT 1 FROM call WHERE owner IS NOT NULL AND state = 'reserved' LIMIT 1") is not None
        return shortage and f"{shortage} Every answer so far is kept. Rerun with a higher ceiling to resume.", is_busy

    def keep(self, key: str, body: bytes) -> None:
        """Write down a body before it is read, unless it echoes a key."""
        if not holds_key(body.decode("utf-8", "replace")):
            with suppress(LedgerLocked):  # it is read at once, and then its answer is written
                self.database.execute("UPDATE call SET body = ? WHERE key = ? AND owner = ?", (body, key, self._owner))

    def answer(self, key: str, reply: Reply, topic: Topic | None = None, worst: float = 0.0) -> Call:
        """Write an answer and its bill, and return its call. Without a bill, and at most, the reserve counts.

        With `topic` it is written even if another process has given its row up meanwhile: it is paid for. A text that
        holds a key in use is not kept.
        """
        if holds_key(reply.text) or holds_key(reply.finish):
            reply = reply._replace(text="", finish=LEAKED_KEY)
        with self._transaction(is_paid=True):
            row = self._one("SELECT worst, model FROM call WHERE key = ? AND state IN ('reserved', 'submitted')", key)
            if row is None and topic is not None:
                row = (worst, topic.model)
                if self._one("SELECT 1 FROM call WHERE key = ?", key) is not None:
                    key = f"{key}/{secrets.token_hex(8)}"
                self.database.execute(_ADD, (key, self.run, *topic, "reserved", worst, self._owner, *[None] * 3))
            if row is not None:
                reply = self._capped(reply, *row)
                self._measured.add(row[1])
                usage = (reply.prompt_tokens, reply.completion_tokens, reply.dollars, reply.answered_by)
                self.database.execute(_ANSWER, (*usage, packed(reply), key))
        return Call(key, "answered", reply, is_new=True)

    def _capped(self, reply: Reply, worst: float, model: str) -> Reply:
        """Count no more than was reserved; what the bill says beyond that is reserved for the calls that follow."""
        if reply.dollars is None or not worst or reply.dollars <= worst:
            return reply
        if reply.dollars > BEYOND * worst:
            return without_usage(reply)
        if not self._highest[model]:
            logger.warning("%s bills $%.2g for a request reserved at $%.2g; it counts as that, and later ones are "
                           "reserved at the bill.", model, reply.dollars, worst)  # fmt: skip
        self._highest[model] = max(self._highest[model], reply.dollars)
        return reply._replace(dollars=worst)

    def reject(self, key: str, reason: str, topic: Topic) -> None:
        """Note that the provider never accepts a request, unless it is on its way elsewhere."""
        reply = packed(Reply(reason, "rejected", 0, 0, 0.0, topic.model))
        self.database.execute(_REJECT, (key, self.run, *topic, reply))

    def give_up(self, key: str, *, is_lost: bool) -> None:
        """Let a question be asked again that brought no reply; if `is_lost`, it counts as its worst case."""
        change = f"UPDATE call SET {_LOST}" if is_lost else "DELETE FROM call"
        self.database.execute(f"{change} WHERE key = ? AND owner = ?", (key, self._owner))

    def lose(self, keys: Iterable[str]) -> None:
        """Count submitted calls as lost: their batch ended without their answers."""
        wanted = f"UPDATE call SET {_LOST}, batch_id = NULL WHERE key = ? AND state = 'submitted'"
        for key in keys:
            self.database.execute(wanted, (key,))

    def ask_again(self, key: str, is_gone: Callable[[], bool]) -> None:
        """Let a question be asked again if its answer is gone, such as a deleted file; what it has cost stays.

        Others see one change: who pays writes the file first, and then the answer.
        """
        with self._transaction():
            if (call := self.find(key)) is not None and call.state in ("answered", "rejected") and is_gone():
                self.database.execute(f"UPDATE call SET key = {_FRESH_KEY} WHERE key = ?", (key,))

    def _settle_dead(self, others: Collection[str] = ()) -> None:
        """Count what killed processes had reserved as lost, and give up their batches that were not submitted.

        Processes are known by their rows; `others` may have none.
        """
        wanted = "SELECT DISTINCT owner FROM call WHERE owner IS NOT NULL AND owner != ?"
        owners = {owner for (owner,) in self.database.execute(wanted, (self._owner,)).fetchall()}
        for owner in owners.union(others) - {self._owner}:
            lock = filelock.FileLock(lock_of(self.path, owner), blocking=False)
            with suppress(filelock.Timeout), lock:
                self._settle(owner)
                Path(lock.lock_file).unlink(missing_ok=True)

    def _settle(self, owner: str) -> None:
        with self._transaction():
            wanted = "WHERE owner = ? AND state = 'reserved' AND body IS"
            self.database.execute(f"UPDATE call SET state = 'received', owner = NULL {wanted} NOT NULL", (owner,))
            self.database.execute(f"UPDATE call SET {_LOST} {wanted} NULL", (owner,))
            self.database.execute("DELETE FROM call WHERE owner = ? AND batch_id LIKE 'draft:%'", (owner,))
            self.database.execute("UPDATE call SET owner = NULL WHERE owner = ?", (owner,))

    def _adopt(self, key: str) -> bool:
        """Take a body that a killed process has received; False if another process was faster."""
        wanted = "UPDATE call SET state = 'reserved', owner = ? WHERE key = ? AND state = 'received'"
        return self.database.execute(wanted, (self._owner, key)).rowcount == 1

    def _one(self, wanted: str, *values: Any) -> Any:
        return self.database.execute(wanted, values).fetchone()

    @contextmanager
    def _transaction(self, *, is_paid: bool = False) -> Iterator[None]:
        """Begin to write. What is paid waits as long as another program locks the ledger."""
        while not self.database.in_transaction:
            try:
                self.database.execute("BEGIN IMMEDIATE")
            except LedgerLocked:
                if not is_paid:
                    raise
                logger.warning("Another program has locked %s, and a paid answer waits to be written.", self.path)
        with self.database:
            yield


_FRESH_KEY = "key || '/' || hex(randomblob(8))"  # no question has it
_LOST = f"key = {_FRESH_KEY}, state = 'lost', owner = NULL"
_ADD = """
INSERT INTO call (key, run, stage, direction, model, prompts, calls, state, worst, owner, batch_id)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, 1, ?7, ?8, ?9, ?10 FROM total
WHERE (?11 IS NULL OR dollars <= ?11) AND (?12 IS NULL OR calls < ?12) ON CONFLICT (key) DO NOTHING
"""
_ANSWER = """
UPDATE call SET state = 'answered', prompt_tokens = ?, completion_tokens = ?, dollars = ?, answered_by = ?, reply = ?,
    body = NULL, owner = NULL, batch_id = NULL WHERE key = ?
"""
_REJECT = """
INSERT INTO call (key, run, stage, direction, model, prompts, state, worst, dollars, calls, reply)
VALUES (?, ?, ?, ?, ?, ?, 'rejected', 0, 0, 0, ?) ON CONFLICT (key) DO NOTHING
"""
