"""The loop that works through items: failures, items of a contrast set, or captions of a study's method.

Each queue has workers of its own, so slow image editing does not delay the captions. A worker takes an item when it
has finished the one before, so few items are in memory. Equal work is done once: `Asker` joins equal questions, and
`Candidates` joins equal edits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from repair_hf.llm.asker import Asker, Deferred
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.synthesis.candidates import Candidates

T = TypeVar("T")

WORKERS = 64  # at least, for each queue: while images are edited, the LLM answers for other items
GRACE = 30.0  # seconds that answers on their way get to arrive when a run stops; they are paid for already


async def work_through(
    asker: Asker, queues: Sequence[Iterable[T]], work: Callable[[T], Awaitable[None]], *images: Candidates
) -> None:
    """Work on the items of each queue, many at once. An item whose answers come with a batch waits for a later run.

    The first error, or an interrupt, ends the run: nothing new is sent, and answers and images on their way arrive.

    Raises:
        RunStopped: If the run cannot go on, or answers will come with a batch.
    """

    async def serve(queue: Iterator[T]) -> None:
        for item in queue:
            with suppress(Deferred):
                await work(item)
            await asyncio.sleep(0)  # answers from the ledger come at once; let the other workers run

    asker.enter_loop()
    await asker.collect()
    count = max(WORKERS, asker.concurrency)  # one queue alone can use all requests at once
    workers = [asyncio.create_task(serve(queue)) for queue in map(iter, queues) for _ in range(count)]
    try:
        done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        for worker in done:
            worker.result()  # raises what the worker raised
    except BaseException:
        await asyncio.gather(asker.drain(GRACE), *(candidates.close() for candidates in images))
        raise
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    await asker.submit()


def run_to_stop(work: Coroutine[Any, Any, None]) -> RunStopped | KeyboardInterrupt | None:
    """Run to the end, or until something stops the run, and return what: what was finished before can be saved."""
    try:
        run_to_end(work)
    except (RunStopped, KeyboardInterrupt) as stop:
        return stop
    return None


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, also in a notebook, whose own event loop is running already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    try:
        with ThreadPoolExecutor(1) as thread:
            try:
                return thread.submit(loop.run_until_complete, task).result()
            except KeyboardInterrupt:
                loop.call_soon_threadsafe(task.cancel)
                raise
    finally:
        loop.close()
