"""Whatever happens, in whatever order: no ceiling is exceeded, no answer is paid twice, and nothing is given up.

A state machine draws what happens to processes that share a ledger, and to a server that counts its own bills:
questions, answers, errors, kills, batches, another ceiling, another folder that takes over what is paid.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule
from ledgers import ledger_in

from repair_hf.llm import ledger, ledger_file
from repair_hf.llm.batches import Batches
from repair_hf.llm.errors import FailedRequest, PassingError, ProviderError, RejectedRequest
from repair_hf.llm.ledger import BudgetSpent, Ceilings, Ledger, Reply
from repair_hf.llm.ledger_file import take_over
from tests.llm.ledger_server import MODEL, TOPIC, WORST, BatchServer, Killed, Process, Server, end

QUESTIONS = [f"question {number}" for number in range(5)]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where no disk has to be waited for
CEILINGS = st.none() | st.tuples(st.sampled_from([0.5, 3.0, 6.0, 12.0]), st.sampled_from([None, 2, 30]))  # new ones
# What becomes of a request: the bill of its answer, or the error in its place; "lost" is billed, but does not arrive.
REPLIES = st.sampled_from([0.25, 0.5, 1.0, 0.25, "500", "429", "400", "400", "lost"])


@pytest.fixture(scope="module", autouse=True)
def _at_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger, "POLL", 0.0)  # what happens does not depend on the speed of the machine
        patch.setattr(ledger_file, "is_network_drive", lambda folder: False)  # asks the system for all drives
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
        self.loop, self.server = asyncio.new_event_loop(), Server(Ceilings(3.0, None))
        self.alive: list[Process] = []
        self.most = 3.0
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
    def ask(
        self, process: Process, keys: list[str], replies: list[float | str], ceilings: tuple[float, int | None] | None
    ) -> None:
        """While nothing is on its way, a question is sent exactly if the ceilings allow it."""
        if ceilings is not None:
            self.server.ceilings, self.most = Ceilings(*ceilings), max(self.most, ceilings[0])
            for each in self.alive:
                each.ledger.ceilings = self.server.ceilings
        max_usd, max_calls = self.server.ceilings
        dollars, calls = process.ledger.total
        is_allowed = dollars + WORST <= max_usd and (max_calls is None or calls < max_calls)
        is_quiet = self._is_quiet() and process.ledger.find(keys[0]) is None
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
        key, future = self.server.pending.pop(place % len(self.server.pending))
        self.server.unclear += reply == "lost"
        if reply == "lost":
            self.server.bill(1.0)
        if reply == "400":
            self.server.rejected.setdefault(key, []).append(self.server.accepted)
        errors = {
            "500": PassingError("boom"),
            "429": PassingError("slow down", 0.0, is_rate_limit=True),
            "400": RejectedRequest("not this one"),
            "lost": PassingError("time-out", may_be_billed=True),
        }
        if isinstance(reply, float):
            self.server.accepted += 1
            future.set_result(self.server.bill(reply))
        else:
            future.set_exception(errors[reply])
        self._turn()

    @rule(process=consumes(processes), how=st.sampled_from(["killed", "killed before it is billed", "stopped"]))
    def end(self, process: Process, how: str) -> None:
        """A signal nobody hears, or Ctrl-C. The server may still answer, and bill, what was on its way."""
        if how == "stopped":
            self.loop.run_until_complete(process.sender.drain(0.0))
            for task in [*process.tasks, *process.sender._tasks.values()]:
                task.cancel()
            end(self.loop, process.tasks)
            self._turn()
        else:
            process.kill(self.loop)
        for each in [each for each in self.server.pending if each[1].cancelled()]:
            self.server.pending.remove(each)
            self.server.unclear += 1
            if how != "killed before it is billed":
                self.server.bill(1.0)
        if how == "stopped":
            process.ledger.close()
        self.alive.remove(process)
        self.take_over()

    @rule(
        process=processes,
        keys=st.sets(st.sampled_from(QUESTIONS)),
        killed_after=st.sampled_from([None, None, "upload", "hand_in"]),
    )
    def collect_and_submit(self, process: Process, keys: set[str], killed_after: str | None) -> None:
        batches = self._batches(process, killed_after)
        with suppress(ProviderError):
            self.server.kept |= self.loop.run_until_complete(batches.collect())
        for key in sorted(keys):
            if process.ledger.find(key) is None and not self._is_reserved(key):
                with suppress(BudgetSpent):
                    self.loop.run_until_complete(batches.defer(key, {}, TOPIC, WORST))
        with suppress(Killed):
            self.loop.run_until_complete(batches.submit())

    def take_over(self) -> None:
        """Another folder asks nothing that was answered here, and pays nothing for it."""
        with Ledger() as another, ledger_in(self.folder) as own:
            take_over(another.database, ".", self.folder)
            answered = {key for key in QUESTIONS if (call := own.find(key)) and call.state == "answered"}
            assert another.total == (0.0, 0)
            assert {key for key in QUESTIONS if (call := another.find(key)) and call.reply} >= answered

    @invariant()
    def ceilings_hold(self) -> None:
        if hasattr(self, "server"):
            assert self.server.dollars <= self.most

    @invariant()
    def the_ledger_counts_all_that_was_billed(self) -> None:
        if getattr(self, "alive", None):
            dollars, calls = self.alive[0].ledger.total
            assert self.server.dollars <= dollars + 1e-9 and self.server.calls <= calls

    @invariant()
    def nothing_is_lost_without_a_reason(self) -> None:
        if getattr(self, "alive", None):
            own = self.alive[0].ledger
            lost = own.database.execute("SELECT COUNT(*) FROM call WHERE state = 'lost'").fetchone()[0]
            assert lost <= self.server.unclear

    def teardown(self) -> None:
        """What is left is asked by one more process, whose server is well: nothing is missing."""
        if not hasattr(self, "loop"):
            return
        for process in list(self.alive):
            process.kill(self.loop)
        self.server.pending.clear()
        accepted, self.server.ceilings = self.server.accepted, Ceilings()
        process = Process(self.folder, Ceilings())
        self.server.kept |= self.loop.run_until_complete(self._batches(process).collect())
        tasks = [process.ask(self.loop, self.server, key) for key in QUESTIONS]
        for _ in range(40):
            self._turn()
            if all(task.done() for task in tasks):
                break
            for _, future in self.server.pending:
                future.set_result(self.server.bill(0.25))
            self.server.pending.clear()
        for key, task in zip(QUESTIONS, tasks, strict=True):
            call, _ = task.result()
            before = self.server.rejected.get(key, [0])[0]  # final only if another was accepted after a rejection
            assert call.state == "answered" or (call.state == "rejected" and before < accepted), (key, call)
        process.ledger.close()
        self.loop.close()
        shutil.rmtree(self.folder)

    def _batches(self, process: Process, killed_after: str | None = None) -> Batches:
        batches = Batches(MODEL, process.ledger)
        batches._api = BatchServer(self.server, killed_after)
        return batches

    def _is_reserved(self, key: str) -> bool:
        wanted = "SELECT 1 FROM call WHERE key = ?"
        return self.alive[0].ledger.database.execute(wanted, (key,)).fetchone() is not None

    def _is_quiet(self) -> bool:
        """Whether no process has a question, and none that was killed has left one."""
        owned = self.alive[0].ledger.database.execute("SELECT 1 FROM call WHERE owner IS NOT NULL").fetchone()
        return owned is None and not any(process.sender._tasks for process in self.alive)

    @property
    def _pending(self) -> list[tuple[str, asyncio.Future[Reply]]]:
        return [each for each in self.server.pending if not each[1].done()]

    def _turn(self) -> None:
        self.loop.run_until_complete(turn())
        for process in self.alive:
            for task in process.tasks:
                if task.done() and not task.cancelled() and (error := task.exception()):
                    assert isinstance(error, RejectedRequest | FailedRequest | ProviderError | BudgetSpent), error
            process.tasks = [task for task in process.tasks if not task.done()]


TestLedger = Machine.TestCase
TestLedger.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)


@pytest.mark.slow
class TestLedgerAtLength(Machine.TestCase):
    settings = settings(max_examples=2000, stateful_step_count=25, deadline=None)
