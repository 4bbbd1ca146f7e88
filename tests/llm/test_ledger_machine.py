"""Whatever happens, in whatever order: no ceiling is exceeded, no answer is paid twice, and nothing is given up.

A state machine draws what happens to processes that share a ledger, and to a server that counts its own bills:
questions, answers, errors, kills, batches, another ceiling.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from repair_hf.llm import ledger
from repair_hf.llm.answers import FailedAnswer
from repair_hf.llm.asker import Deferred
from repair_hf.llm.ledger import BudgetSpent, Reply
from repair_hf.llm.provider import PassingError, RejectedRequest
from repair_hf.runtime.run_folder import RunStopped
from tests.llm.ledger_server import WORST, Batches, Ceilings, Killed, Process, Server

QUESTIONS = [f"question {number}" for number in range(5)]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where no disk has to be waited for
CEILINGS = st.none() | st.tuples(st.sampled_from([0.5, 3.0, 6.0, 12.0]), st.sampled_from([None, 2, 30]))  # new ones
# What becomes of a request: the bill of its answer, or the error in its place; "lost" is billed, but does not arrive.
REPLIES = st.sampled_from([0.25, 0.5, 1.0, 0.25, "500", "429", "400", "lost"])
ERRORS = {
    "500": PassingError("boom"),
    "429": PassingError("slow down", named_wait=0.0, is_rate_limit=True),
    "400": RejectedRequest("not this one"),
    "lost": PassingError("time-out", may_be_billed=True),
}


@pytest.fixture(scope="module", autouse=True)
def _at_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "POLL", 0.0)  # what happens does not depend on the speed of the machine
        patch.setattr(ledger, "_is_alive", lambda owner: owner not in Process.dead)  # all are in this process
        yield


async def turn() -> None:
    """Give everything that can go on the time to do so."""
    for _ in range(18):
        await asyncio.sleep(0)


class Machine(RuleBasedStateMachine):
    processes = Bundle("processes")

    @initialize(target=processes)
    def begin(self) -> Process:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.loop, self.server = asyncio.new_event_loop(), Server((3.0, None))
        self.alive: list[Process] = []
        self.highest_ceiling = 3.0
        return self.start()

    @precondition(lambda self: len(self.alive) < 3)
    @rule(target=processes)
    def start(self) -> Process:
        process = Process(self.folder, self.server.ceilings)
        self.alive.append(process)
        return process

    @rule(
        process=processes,
        keys=st.lists(st.sampled_from(QUESTIONS), min_size=1, max_size=3),
        replies=st.lists(REPLIES, max_size=4),
        ceilings=CEILINGS,
    )
    def ask(self, process: Process, keys: list[str], replies: list[float | str], ceilings: Ceilings | None) -> None:
        """While nothing is on its way, a question is sent exactly if the ceilings allow it."""
        if ceilings is not None:
            self.server.ceilings, self.highest_ceiling = ceilings, max(self.highest_ceiling, ceilings[0])
            for other in self.alive:
                other.ledger.max_usd, other.ledger.max_calls = ceilings
        max_usd, max_calls = self.server.ceilings
        dollars, calls = process.ledger.total
        is_allowed = dollars + WORST <= max_usd and (max_calls is None or calls < max_calls)
        is_quiet = not self._rows("owner IS NOT NULL") and not self._rows("key = ?", keys[0])
        is_quiet = is_quiet and not any(each.model._tasks for each in self.alive)
        process.ask(self.loop, self.server, keys[0])
        self._turn()
        if is_quiet:
            assert [key for key, _ in self.server.pending] == (keys[:1] if is_allowed else [])
        for key in keys[1:]:
            process.ask(self.loop, self.server, key)
        self._turn()
        for reply in replies:
            if self._pending:
                self.reply(reply, 0)

    @precondition(lambda self: self._pending)
    @rule(reply=REPLIES, place=st.integers(0, 100))
    def reply(self, reply: float | str, place: int) -> None:
        self.server.pending = self._pending
        _, future = self.server.pending.pop(place % len(self.server.pending))
        if reply == "lost":
            self.server.unclear += 1
            self.server.bill(1.0)
        if isinstance(reply, float):
            future.set_result(self.server.bill(reply))
        else:
            future.set_exception(ERRORS[reply])
        self._turn()

    @rule(process=consumes(processes), how=st.sampled_from(["killed", "killed before it is billed", "stopped"]))
    def end(self, process: Process, how: str) -> None:
        """A signal that nobody hears, or Ctrl-C. The server may still answer, and bill, what was on its way."""
        if how == "stopped":
            self.loop.run_until_complete(process.model.drain(0.0))
            process.end(self.loop)
            process.ledger.close()
        else:
            process.kill(self.loop)
        self.alive.remove(process)
        for request in [request for request in self.server.pending if request[1].cancelled()]:
            self.server.pending.remove(request)
            self.server.unclear += 1
            if how != "killed before it is billed":
                self.server.bill(1.0)
        self._turn()

    @rule(process=processes, keys=st.sets(st.sampled_from(QUESTIONS)))
    def collect_and_submit(self, process: Process, keys: set[str]) -> None:
        self._batch(process, keys)

    @precondition(lambda self: not self._pending)
    @rule(
        process=consumes(processes),
        keys=st.sets(st.sampled_from(QUESTIONS), min_size=1),
        step=st.sampled_from(["create_file", "create_batch", "file_content"]),
    )
    def is_killed_in_a_batch(self, process: Process, keys: set[str], step: str) -> None:
        with suppress(Killed):
            self._batch(process, keys, step)
        process.kill(self.loop)
        self.alive.remove(process)

    def _batch(self, process: Process, keys: set[str], killed_after: str | None = None) -> None:
        batches = Batches(process, self.server, killed_after)
        self.loop.run_until_complete(batches.collect())
        self.server.kept |= batches.collected
        for key in sorted(keys):
            if process.ledger.find(key) is None:
                with suppress(BudgetSpent, Deferred, FailedAnswer):
                    self.loop.run_until_complete(batches.ask_key(key))
        with suppress(RunStopped):
            self.loop.run_until_complete(batches.submit())

    @invariant()
    def ceilings_hold_and_the_ledger_counts_all_that_was_billed(self) -> None:
        if getattr(self, "alive", None):
            dollars, calls = self.alive[0].ledger.total
            assert self.server.dollars <= min(dollars + 1e-9, self.highest_ceiling) and self.server.calls <= calls
            assert len(self._rows("state = 'lost'")) <= self.server.unclear, "a call is lost without a reason"

    def teardown(self) -> None:
        """What is left is asked by one more process, whose server is well: nothing is missing."""
        if not hasattr(self, "loop"):
            return
        for process in list(self.alive):
            process.kill(self.loop)
        self.server.pending.clear()
        self.server.ceilings = (None, None)
        process = Process(self.folder, self.server.ceilings)
        self._batch(process, set())
        tasks = [process.ask(self.loop, self.server, key) for key in QUESTIONS]
        for _ in range(40):
            self.loop.run_until_complete(turn())
            for _, future in self._pending:
                future.set_result(self.server.bill(0.25))
        assert all(task.result()[0].text == "yes" for task in tasks)
        process.ledger.close()
        self.loop.close()
        shutil.rmtree(self.folder)

    def _rows(self, condition: str, *values: str) -> list:
        wanted = f"SELECT key FROM call WHERE {condition}"
        return self.alive[0].ledger.database.execute(wanted, values).fetchall()

    @property
    def _pending(self) -> list[tuple[str, asyncio.Future[Reply]]]:
        return [request for request in self.server.pending if not request[1].done()]

    def _turn(self) -> None:
        self.loop.run_until_complete(turn())
        for process in self.alive:
            for task in process.tasks:
                if task.done() and not task.cancelled() and (error := task.exception()):
                    assert isinstance(error, FailedAnswer | RunStopped), error
            process.tasks = [task for task in process.tasks if not task.done()]


ON_ANY_MACHINE = settings(stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestLedger = Machine.TestCase
TestLedger.settings = settings(ON_ANY_MACHINE, max_examples=25)


@pytest.mark.slow
class TestLedgerAtLength(Machine.TestCase):
    settings = settings(ON_ANY_MACHINE, max_examples=2000)
