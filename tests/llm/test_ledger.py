"""Whatever happens, in whatever order: no ceiling is exceeded, no answer is paid twice, and nothing is given up.

A state machine draws what happens to processes that share a ledger, and to a server that counts its own bills:
questions, answers, errors, kills, batches, another ceiling, another folder that takes over what is paid.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import suppress
from math import inf
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from ledgers import ledger_in

from repair_hf.llm.batches import Batches
from repair_hf.llm.errors import FailedRequest, PassingError, ProviderError, RejectedRequest
from repair_hf.llm.ledger import BudgetSpent, Ceilings, Reply, Topic
from repair_hf.llm.ledger_file import take_over
from repair_hf.llm.limits import Limits
from repair_hf.llm.sending import RequestOptions, Retries, Sender

MODEL = "openai/gpt-4o-mini"
TOPIC = Topic("audit", "i2t", MODEL)
WORST = 1.0
QUESTIONS = [f"question {number}" for number in range(8)]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where no disk has to be waited for


class Server:
    """Counts what it bills; `pending` are the requests that it has not answered, with the futures of their replies.

    `ceilings` are those of now: each request must fit below them, beside all that is billed or may still be.
    """

    def __init__(self, ceilings: Ceilings) -> None:
        self.dollars, self.calls, self.ceilings = 0.0, 0, ceilings
        self.pending: list[tuple[str, asyncio.Future[Reply]]] = []
        self.accepted = 0  # how many questions
        self.rejected: dict[str, list[int]] = {}  # question -> how many were accepted when it was rejected, each time
        self.kept: set[str] = set()  # questions whose answers a living process has got
        self.files: dict[str, list[str]] = {}
        self.batches: dict[str, tuple[str, dict[str, Reply | RejectedRequest]]] = {}

    def bill(self, dollars: float) -> Reply:
        self.dollars, self.calls = self.dollars + dollars, self.calls + 1
        return Reply("yes", "stop", 10, 5, dollars, MODEL)

    async def send(self, key: str) -> Reply:
        assert key not in self.kept, "what was answered is asked again"
        assert not any(key in answers for _, answers in self.batches.values()), "what is in a batch is asked as well"
        on_their_way = sum(not future.done() for _, future in self.pending)
        assert self.dollars + WORST * (on_their_way + 1) <= (self.ceilings.max_usd or inf), "a ceiling is exceeded"
        assert self.calls + on_their_way + 1 <= (self.ceilings.max_calls or inf), "a ceiling is exceeded"
        future = asyncio.get_running_loop().create_future()
        self.pending.append((key, future))
        reply = await future
        self.kept.add(key)
        return reply


class BatchServer:
    """The batch API of the server, as `Batches` sees it. It may kill its caller after a step."""

    def __init__(self, server: Server, killed_after: str | None = None) -> None:
        self.server, self.killed_after = server, killed_after

    def _end(self, step: str) -> None:
        if step == self.killed_after:
            raise Killed

    def line(self, key: str, request: dict) -> bytes:
        return f"{key}\n".encode()

    async def upload(self, name: str, lines: bytes) -> str:
        file = f"file {len(self.server.files)}"
        self.server.files[file] = lines.decode().splitlines()
        self._end("upload")
        return file

    async def hand_in(self, file: str) -> str:
        server, id = self.server, f"batch {len(self.server.batches)}"
        assert not server.kept & set(server.files[file]), "what was answered is asked again"
        server.batches[id] = file, {key: server.bill(0.5) for key in server.files[file]}
        self._end("hand_in")
        return id

    async def find(self, file: str) -> str | None:
        return next((id for id, (of, _) in self.server.batches.items() if of == file), None)

    async def fetch(self, id: str) -> list[tuple[str, Reply | RejectedRequest]]:
        return list(self.server.batches[id][1].items())


class Killed(BaseException):
    """Like a signal, nothing of ours catches it."""


class Process:
    """A process with the ledger of a folder; `kill` leaves everything as `kill -9` would."""

    def __init__(self, folder: Path, ceilings: Ceilings) -> None:
        self.ledger = ledger_in(folder, *ceilings)
        retries = Retries(attempts=2, first_wait=0.0, longest_wait=0.0)
        options = RequestOptions(limits=Limits(4), retries=retries, max_error_rate=1.0)
        self.sender = Sender(MODEL, self.ledger, options)
        self.tasks: list[asyncio.Task] = []

    def ask(self, loop: asyncio.AbstractEventLoop, server: Server, key: str) -> asyncio.Task:
        work = self.sender.ask(key, lambda: server.send(key), TOPIC, worst=lambda: WORST)
        self.tasks.append(task := loop.create_task(work))
        return task

    def kill(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ledger.database.close()  # nothing that runs on the way out is written
        self.ledger._lock.release()  # as the system does
        for task in [*self.tasks, *self.sender._tasks.values()]:
            task.cancel()
        end(loop, self.tasks)


def end(loop: asyncio.AbstractEventLoop, tasks: list[asyncio.Task]) -> None:
    """Wait until cancelled tasks are done."""

    async def wait() -> None:
        await asyncio.gather(*tasks, return_exceptions=True)

    loop.run_until_complete(wait())


class Machine(RuleBasedStateMachine):
    processes = Bundle("processes")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.loop, self.server = asyncio.new_event_loop(), Server(Ceilings(3.0, None))
        self.alive: list[Process] = []
        self.most = 3.0

    @rule(target=processes)
    def start(self) -> Process:
        process = Process(self.folder, self.server.ceilings)
        self.alive.append(process)
        return process

    @rule(process=processes, key=st.sampled_from(QUESTIONS))
    def ask(self, process: Process, key: str) -> None:
        """While nothing is on its way, a question is sent exactly if the ceilings allow it."""
        ledger, (max_usd, max_calls) = process.ledger, self.server.ceilings
        dollars, calls = ledger.total
        is_allowed = dollars + WORST <= max_usd and (max_calls is None or calls < max_calls)
        is_quiet = self._is_quiet() and ledger.find(key) is None
        process.ask(self.loop, self.server, key)
        self._turn()
        if is_quiet:
            assert [key for key, _ in self.server.pending] == ([key] if is_allowed else [])

    @rule(dollars=st.sampled_from([0.25, 0.5, 1.0]), place=st.integers(0, 100))
    def answer(self, dollars: float, place: int) -> None:
        for _, future in self._take(place):
            self.server.accepted += 1
            future.set_result(self.server.bill(dollars))
            self._turn()

    @rule(kind=st.sampled_from(["500", "429", "400", "lost"]), place=st.integers(0, 100))
    def fail(self, kind: str, place: int) -> None:
        for key, future in self._take(place):
            if kind == "lost":
                self.server.bill(1.0)
            if kind == "400":
                self.server.rejected.setdefault(key, []).append(self.server.accepted)
            errors = {
                "500": PassingError("boom"),
                "429": PassingError("slow down", 0.0, is_rate_limit=True),
                "400": RejectedRequest("not this one"),
                "lost": PassingError("time-out", may_be_billed=True),
            }
            future.set_exception(errors[kind])
            self._turn()

    @rule(process=consumes(processes), billed=st.booleans())
    def kill(self, process: Process, billed: bool) -> None:
        """The server may still answer, and bill, what was on its way."""
        mine = {id(task) for task in process.sender._tasks.values()}
        before = list(self.server.pending)
        process.kill(self.loop)
        for each in before:
            if each[1].cancelled():
                self.server.pending.remove(each)
                if billed and mine:
                    self.server.bill(1.0)
        self.alive.remove(process)

    @rule(process=consumes(processes))
    def stop(self, process: Process) -> None:
        """The run ends, as on Ctrl-C: what is on its way and does not arrive counts as lost."""
        self.loop.run_until_complete(process.sender.drain(0.0))
        for task in [*process.tasks, *process.sender._tasks.values()]:
            task.cancel()
        end(self.loop, process.tasks)
        self._turn()
        gone = [each for each in self.server.pending if each[1].cancelled()]
        for each in gone:
            self.server.pending.remove(each)
            self.server.bill(1.0)
        process.ledger.close()
        self.alive.remove(process)

    @rule(dollars=st.sampled_from([0.5, 3.0, 6.0, 12.0]), calls=st.sampled_from([None, 2, 30]))
    def change_ceilings(self, dollars: float, calls: int | None) -> None:
        self.server.ceilings, self.most = Ceilings(dollars, calls), max(self.most, dollars)
        for process in self.alive:
            process.ledger.ceilings = self.server.ceilings

    @rule(
        process=processes,
        keys=st.sets(st.sampled_from(QUESTIONS), min_size=1),
        killed_after=st.sampled_from([None, None, "upload", "hand_in"]),
    )
    def submit(self, process: Process, keys: set[str], killed_after: str | None) -> None:
        batches = self._batches(process, killed_after)
        for key in sorted(keys):
            if process.ledger.find(key) is None and not self._is_reserved(key):
                with suppress(BudgetSpent):
                    batches.defer(key, {}, TOPIC, WORST)
        with suppress(Killed):
            self.loop.run_until_complete(batches.submit())

    @rule(process=processes)
    def collect(self, process: Process) -> None:
        with suppress(ProviderError):
            self.server.kept |= self.loop.run_until_complete(self._batches(process).collect())

    @rule()
    def take_over(self) -> None:
        """Another folder asks nothing that was answered here, and pays nothing for it."""
        with (
            tempfile.TemporaryDirectory(dir=MEMORY) as other,
            ledger_in(Path(other)) as ledger,
            ledger_in(self.folder) as own,
        ):
            take_over(ledger.database, ".", self.folder)
            answered = {key for key in QUESTIONS if (call := own.find(key)) and call.state == "answered"}
            assert ledger.total == (0.0, 0)
            assert {key for key in QUESTIONS if (call := ledger.find(key)) and call.reply} >= answered

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
    def the_sums_are_those_of_the_rows(self) -> None:
        if getattr(self, "alive", None):
            ledger = self.alive[0].ledger
            wanted = "SELECT TOTAL(COALESCE(dollars, worst)), COALESCE(SUM(calls), 0) FROM call"
            assert ledger.total == ledger.database.execute(wanted).fetchone()  # exact: all are quarters

    def teardown(self) -> None:
        """What is left is asked by one more process, whose server is well: nothing is missing."""
        if not hasattr(self, "loop"):
            return
        for process in list(self.alive):
            process.kill(self.loop)
        self.server.pending.clear()
        self.server.ceilings = Ceilings()
        process = Process(self.folder, Ceilings())
        self.server.kept |= self.loop.run_until_complete(self._batches(process).collect())
        tasks = [process.ask(self.loop, self.server, key) for key in QUESTIONS]
        for _ in range(40):
            self._turn()
            for _, future in self.server.pending:
                future.set_result(self.server.bill(0.25))
            self.server.pending.clear()
        for key, task in zip(QUESTIONS, tasks, strict=True):
            call, _ = task.result()
            accepted = self.server.rejected.get(key, [0])  # final if others were accepted between two rejections
            assert call.state == "answered" or (call.state == "rejected" and accepted[0] < accepted[-1]), (key, call)
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

    def _take(self, place: int) -> list[tuple[str, asyncio.Future[Reply]]]:
        """Take one of the pending requests; none if there is none."""
        self.server.pending = [each for each in self.server.pending if not each[1].done()]
        return [self.server.pending.pop(place % len(self.server.pending))] if self.server.pending else []

    def _turn(self) -> None:
        for _ in range(6):
            self.loop.run_until_complete(asyncio.sleep(0))
        for process in self.alive:
            for task in process.tasks:
                if task.done() and not task.cancelled() and (error := task.exception()):
                    assert isinstance(error, RejectedRequest | FailedRequest | ProviderError | BudgetSpent), error
            process.tasks = [task for task in process.tasks if not task.done()]


TestLedger = Machine.TestCase
TestLedger.settings = settings(max_examples=300, stateful_step_count=25, deadline=None)
