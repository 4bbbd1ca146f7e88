"""What the state machine of the ledger plays with: a server that counts its own bills, and processes to be killed."""

from __future__ import annotations

import asyncio
from math import inf
from pathlib import Path

from ledgers import ledger_in

from repair_hf.llm.batch_api import Finished
from repair_hf.llm.errors import RejectedRequest
from repair_hf.llm.ledger import Ceilings, Reply, Topic
from repair_hf.llm.ledger_file import lock_of, owners_of
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.sending import Question, Retries, Sender

MODEL = "openai/gpt-4o-mini"
TOPIC = Topic("audit", "i2t", MODEL)
WORST = 1.0


class Server:
    """Counts what it bills; `pending` are the requests that it has not answered, with the futures of their replies.

    `ceilings` are those of now: each request must fit below them, beside all that is billed or may still be.
    """

    def __init__(self, ceilings: Ceilings) -> None:
        self.dollars, self.calls, self.ceilings = 0.0, 0, ceilings
        self.pending: list[tuple[str, asyncio.Future[Reply]]] = []
        self.accepted = self.unclear = 0  # how many questions; how many requests may be billed without an answer
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

    async def fetch(self, id: str) -> Finished:
        """Every third batch is billed, and brings nothing."""
        file, answers = self.server.batches[id]
        if id.endswith(("2", "5", "8")):
            self.server.unclear += len(answers)
            self.server.batches[id] = file, {}
        return Finished(list(self.server.batches[id][1].items()), None)


class Killed(BaseException):
    """Like a signal, nothing of ours catches it."""


class Process:
    """A process with the ledger of a folder; `kill` leaves everything as `kill -9` would."""

    def __init__(self, folder: Path, ceilings: Ceilings) -> None:
        self.ledger = ledger_in(folder, *ceilings)
        retries = Retries(attempts=2, first_wait=0.0, longest_wait=0.0)
        options = RequestOptions(concurrency=4, max_error_rate=1.0)
        self.sender = Sender(MODEL, self.ledger, options, retries)
        self.tasks: list[asyncio.Task] = []

    def ask(self, loop: asyncio.AbstractEventLoop, server: Server, key: str) -> asyncio.Task:
        work = self.sender.ask(Question(key, TOPIC, lambda: server.send(key), worst=lambda: WORST))
        self.tasks.append(task := loop.create_task(work))
        return task

    def kill(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ledger.database.close()  # nothing that runs on the way out is written
        self.ledger._lock.release()  # as the system does
        if not self.ledger.path.with_name("ledger.sqlite-wal").exists():  # closing has merged it, which no kill does
            for lock in (lock_of(self.ledger.path, owner) for owner in owners_of(self.ledger.path)):
                lock.unlink()
        for task in [*self.tasks, *self.sender._tasks.values()]:
            task.cancel()
        end(loop, self.tasks)


def end(loop: asyncio.AbstractEventLoop, tasks: list[asyncio.Task]) -> None:
    """Wait until cancelled tasks are done."""

    async def wait() -> None:
        await asyncio.gather(*tasks, return_exceptions=True)

    loop.run_until_complete(wait())
