"""Workers that take many failures at once through audit, instruct and edit.

Captions and images have workers of their own, so slow image editing does not delay the captions. Equal work is done
once: the LLM's client joins equal questions, and `Candidates` joins equal edits. With a batch API, a failure whose
answer has not come yet waits: it is neither edited nor dropped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from tqdm.auto import tqdm

from repair_hf.llm.calls import format_dollars
from repair_hf.llm.client import AnswerError, ChatModel, Deferred
from repair_hf.llm.cost import known_dollars
from repair_hf.records.columns import DIRECTIONS
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.options import RepairOptions
from repair_hf.synthesis.record_builder import RecordBuilder, RepairTask
from repair_hf.synthesis.sources import UnreadableImage
from repair_hf.synthesis.steps import audit, edit_caption, instruct

T = TypeVar("T")

WORKERS = 64  # at least, for each queue: while images are edited, the LLM has others to answer for
GRACE = 30.0  # seconds that answers on their way get to arrive when a run stops; they are paid for already


class RepairWorkers:
    """Audit, instruct and edit many failures at once."""

    def __init__(
        self,
        chat: ChatModel,
        images: Candidates,
        builder: RecordBuilder,
        options: RepairOptions,
        *,
        bar: tqdm,
    ) -> None:
        self.chat, self.images, self.builder, self.options = chat, images, builder, options
        self.bar = bar
        self.outcomes: Counter[str] = Counter()
        self.waiting = 0  # failures that wait for answers of a batch

    async def run(self, tasks: Sequence[RepairTask]) -> None:
        """Finish all tasks.

        An error that is not one failure's own, or an interrupt, ends the run: no new request is sent, and answers on
        their way may still arrive.
        """
        queues = [[task for task in tasks if task.direction == direction] for direction in DIRECTIONS]
        async with self.images.open():
            await work_through(self.chat, queues, self._finish, self.images)

    async def _finish(self, task: RepairTask) -> None:
        try:
            await self._repair(task)
        except Deferred:
            self.waiting += 1
            return
        except (AnswerError, UnreadableImage) as error:
            task.drop(error.drop_reason, str(error))
        self.outcomes[task.reason or "edited"] += 1
        self._show_progress()

    async def _repair(self, task: RepairTask) -> None:
        """Take a failure through all steps; in both directions they are the same, but for who edits."""
        direction, shown = task.direction, self.builder.shown
        if self.options.audited:
            task.verdict = await audit(self.chat, direction, **shown(task, "q", "gt", "fp"))
            if reason := task.verdict.drop_reason:
                return task.drop(reason)
        task.instruction, task.error_types = await instruct(self.chat, direction, **shown(task, "q", "fp"))
        if task.instruction is None:
            return task.drop("no_op", "the instruction finds nothing to change")
        if direction == "t2i":
            task.candidates = await self.images.make(task.at["fp"], task.instruction)
            if not any(task.candidates):
                task.drop("editor_failed", self.images.why_none(task.at["fp"], task.instruction))
        else:
            image = shown(task, "q")["q"] if self.options.attach_image else None
            how: Any = {"candidates": self.options.candidates, "seed": self.options.seed, "image": image}
            task.candidates = await edit_caption(self.chat, shown(task, "fp")["fp"], task.instruction, **how)

    def _show_progress(self) -> None:
        dollars = known_dollars([*self.chat.usage.values(), self.images.usage])
        paid = "unknown cost" if dollars is None else format_dollars(dollars)
        dropped = self.outcomes.total() - self.outcomes["edited"]
        self.bar.set_postfix_str(f"{self.outcomes['edited']} edited, {dropped} dropped, {paid}", refresh=False)
        self.bar.update()


async def work_through(
    chat: ChatModel, queues: Sequence[Iterable[T]], work: Callable[[T], Awaitable[None]], *images: Candidates
) -> None:
    """Work on the items of each queue, many at once, until all are done or one fails.

    Then nothing new is sent, and answers on their way may arrive.
    """

    async def serve(queue: Iterator[T]) -> None:
        for item in queue:
            await work(item)
            await asyncio.sleep(0)  # answers from the ledger come at once; let the other workers run

    count = max(WORKERS, chat.concurrency)  # one queue alone can use all requests at once
    tasks = [asyncio.create_task(serve(queue)) for queue in map(iter, queues) for _ in range(count)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()  # raises what the worker raised
    except BaseException:
        for candidates in images:  # before waiting for the LLM's answers: meanwhile many images could be bought
            candidates.stop()
        raise
    finally:
        await chat.drain(GRACE)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
