"""What the state machine of the ledger plays with: a server that counts its own bills, and processes to be killed."""

from __future__ import annotations

import asyncio
import json
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ledgers import ledger_in

from repair_hf.llm.batch_asker import BatchAsker
from repair_hf.llm.ledger import Reply, Topic
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.paid_model import PaidModel, Retries

MODEL = "openai/gpt-4o-mini"
TOPIC = Topic("audit", "i2t", MODEL)
WORST = 1.0
RETRIES = Retries(attempts=2, first_wait=0.0, longest_wait=0.0)
OPTIONS = RequestOptions(concurrency=4, max_error_rate=1.0)

Ceilings = tuple[float | None, int | None]


class Server:
    """Counts what it bills; `pending` are the requests that it has not answered, with the futures of their replies.

    `ceilings` are those of now: each request must fit below them, beside all that is billed or may still be.
    """

    def __init__(self, ceilings: Ceilings) -> None:
        self.dollars, self.calls, self.ceilings = 0.0, 0, ceilings
        self.pending: list[tuple[str, asyncio.Future[Reply]]] = []
        self.unclear = 0  # how many requests may be billed without an answer
        self.kept: set[str] = set()  # questions whose answers a living process has got
        self.files: list[list[str]] = []  # questions of each file
        self.batches: list[int] = []  # file of each batch
        self.collected: set[int] = set()

    def bill(self, dollars: float) -> Reply:
        self.dollars, self.calls = self.dollars + dollars, self.calls + 1
        return Reply("yes", "stop", 10, 5, dollars, MODEL)

    async def send(self, key: str) -> Reply:
        assert key not in self.kept, "what was answered is asked again"
        for number, file in enumerate(self.batches):
            assert number in self.collected or key not in self.files[file], "what is in a batch is asked as well"
        on_their_way = sum(not future.done() for _, future in self.pending)
        assert self.dollars + WORST * (on_their_way + 1) <= (self.ceilings[0] or inf), "a ceiling is exceeded"
        assert self.calls + on_their_way + 1 <= (self.ceilings[1] or inf), "a ceiling is exceeded"
        future = asyncio.get_running_loop().create_future()
        self.pending.append((key, future))
        reply = await future
        self.kept.add(key)
        return reply

    def call(self, name: str, *args: Any, **request: Any) -> Any:
        """Do what a function of LiteLLM's batch API does.

        Of three batches, one is answered, one brings reasons and no bill, and one brings nothing and is billed.
        """
        if name == "create_file":
            lines = request["file"][1].splitlines()
            self.files.append([json.loads(line)["custom_id"] for line in lines])
            return SimpleNamespace(id=str(len(self.files) - 1))
        if name == "create_batch":
            file = int(request["input_file_id"])
            assert not self.kept & {*self.files[file]}, "what was answered is asked again"
            kind = len(self.batches) % 3
            for _ in self.files[file] if kind != 1 else ():
                self.bill(0.5)
            self.unclear += len(self.files[file]) if kind == 2 else 0
            self.batches.append(file)
            return SimpleNamespace(id=str(len(self.batches) - 1))
        if name == "list_batches":
            listed = [SimpleNamespace(id=str(n), input_file_id=str(file)) for n, file in enumerate(self.batches)]
            return SimpleNamespace(data=listed, has_more=False)
        if name == "retrieve_batch":
            return SimpleNamespace(status="completed", output_file_id=args[0], error_file_id=None, errors=None)
        number = int(args[0])
        self.collected.add(number)
        row = ({"response": {"status_code": 200, "body": {}}}, {"error": "no"}, None)[number % 3]
        keys = self.files[self.batches[number]] if row else ()
        return SimpleNamespace(text="\n".join(json.dumps({"custom_id": key} | row) for key in keys))


class Killed(BaseException):
    """Like a signal, nothing of ours catches it."""


class Batches(BatchAsker):
    """Speaks with a `Server`, which may kill it after a step."""

    def __init__(self, process: Process, server: Server, killed_after: str | None) -> None:
        super().__init__(MODEL, process.ledger, options=OPTIONS, retries=RETRIES)
        self.server, self.killed_after = server, killed_after

    async def _call_once(self, name: str, *args: Any, **request: Any) -> Any:
        result = self.server.call(name, *args, **request)
        if name == self.killed_after:
            raise Killed
        return result

    def worst(self, request: Any) -> float:
        return WORST

    def read(self, response: Any) -> Reply:
        return Reply("yes", "stop", 10, 5, 0.5, MODEL)

    async def ask_key(self, key: str) -> None:
        await self._ask(key, TOPIC, {"messages": [], "model": MODEL})


class Process:
    """A process with the ledger of a folder; `kill` leaves everything as `kill -9` would."""

    dead: set[str] = set()

    def __init__(self, folder: Path, ceilings: Ceilings) -> None:
        self.ledger = ledger_in(folder, *ceilings)
        self.model = PaidModel(MODEL, self.ledger, OPTIONS, has_price=True, retries=RETRIES)
        self.tasks: list[asyncio.Task] = []

    def ask(self, loop: asyncio.AbstractEventLoop, server: Server, key: str) -> asyncio.Task:
        work = self.model.pay(key, TOPIC, lambda: WORST, lambda: server.send(key))
        task = loop.create_task(work)
        self.tasks.append(task)
        return task

    def kill(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ledger.database.close()  # nothing that runs on the way out is written
        self.dead.add(self.ledger._owner)
        self.end(loop)

    def end(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel all tasks, and wait for them."""
        tasks = [*self.tasks, *self.model._tasks.values()]
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks)) if tasks else None
