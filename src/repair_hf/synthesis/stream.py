"""Failures in flight: many at once, each through audit, instruct and edit.

In:  `Repair`s that know their failure, and whoever answers and edits.
Out: the same, filled in: with candidates to choose from, or with the reason why there are none.

Captions and images have workers of their own, so that slow image editing does not hold up the captions. Identical work is done
once: equal questions are one to the LLM's client, and equal edits one to `Candidates`.

Where the LLM answers in batches, a failure whose answer has not come waits: it is neither filled in nor dropped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tqdm.auto import tqdm

from repair_hf.llm.client import AnswerError, ChatModel, Deferred
from repair_hf.records.columns import DIRECTIONS, MODALITIES
from repair_hf.synthesis.audit import Verdict, audit, audit_group
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.captions import edit_caption
from repair_hf.synthesis.instruct import error_types, instruct, is_no_change
from repair_hf.synthesis.selection import Choice
from repair_hf.synthesis.sources import SourceImages, UnreadableImage

GRACE = 30.0  # seconds: when a run stops, answers that are on their way are paid for already, so they may still arrive


@dataclass
class Repair:
    """One failure on its way to a record.

    Args:
        row: As it was mined.
        at: Role (`q`, `gt`, `fp`) -> row in the pairs' captions or images.
    """

    row: dict
    at: dict[str, int]
    verdict: Verdict | None = None
    instruction: str | None = None
    error_types: list[str] = field(default_factory=list)
    candidates: list[str | None] | list[Path | None] = field(default_factory=list)  # (M,)
    choice: Choice | None = None
    reason: str | None = None
    detail: str | None = None

    @property
    def direction(self) -> str:
        return self.row["direction"]

    def drop(self, reason: str, detail: str | None = None) -> None:
        """Leave it unrepaired, and say why."""
        self.reason, self.detail = reason, detail


class Stream:
    """What the failures of a run share while they are in flight.

    Args:
        chat: Audits, instructs, edits captions.
        images: Edits images.
        sources: The pairs' images.
        captions: The pairs' captions.
        candidates: M, for captions.
        seed: Fixes the draws of the edited captions.
        attach_image: Show the query image to the editor of a caption.
        audited: Audit failures first.
        grouped_audit: Audit all false positives of an image in one request.
        together: Ask for all candidates of a caption in one request.
        bar: Moves with every failure that is through.
        watch: Told of every failure that is through.

    Attributes:
        waiting: How many failures are not through, because their answers come with a batch.
    """

    def __init__(
        self,
        chat: ChatModel,
        images: Candidates,
        sources: SourceImages,
        captions: list[str],
        *,
        candidates: int,
        seed: int,
        attach_image: bool,
        audited: bool = True,
        grouped_audit: bool = False,
        together: bool = False,
        bar: tqdm,
        watch: Callable[[Repair], None] | None = None,
    ) -> None:
        self.chat, self.images, self.sources, self.captions, self.bar = chat, images, sources, captions, bar
        self.candidates, self.seed, self.attach_image = candidates, seed, attach_image
        self.audited = audited
        self.grouped_audit, self.together, self.watch = grouped_audit, together, watch
        self.outcomes: Counter[str] = Counter()
        self.waiting = 0

    async def run(self, repairs: Iterable[Repair], workers: int) -> None:
        """Take all failures through, `workers` of each direction at a time.

        If something fails that is not one failure's fault, or the run is interrupted, nothing new is asked; what is on its
        way may arrive, then all ends.
        """
        queues = [iter(self._groups(repairs, direction)) for direction in DIRECTIONS]
        async with self.images.open():
            await work_through(self.chat, [self._work(queue) for queue in queues for _ in range(workers)], self.images)

    def _groups(self, repairs: Iterable[Repair], direction: str) -> list[list[Repair]]:
        """What one worker takes at a time: a failure, or all that are audited together."""
        groups: dict[int, list[Repair]] = {}
        for number, repair in enumerate(repairs):
            if repair.direction == direction:
                is_shared = self.grouped_audit and direction == "i2t"
                groups.setdefault(repair.at["q"] if is_shared else number, []).append(repair)
        return list(groups.values())

    async def _work(self, queue: Iterator[list[Repair]]) -> None:
        for group in queue:
            if len(group) > 1 and not await self._audit_together(group):
                continue
            for repair in group:
                await self._take(repair)
                await asyncio.sleep(0)  # answers from the journal come without a pause; others want their turn too

    async def _audit_together(self, group: list[Repair]) -> bool:
        """Ask for the verdicts of a group; False if they come with a batch. Without an answer of use, each is audited later."""
        try:
            shown = self._shown(group[0], "q", "gt")
            verdicts = await audit_group(self.chat, **shown, fps=[self.captions[repair.at["fp"]] for repair in group])
        except Deferred:
            self.waiting += len(group)
            return False
        except UnreadableImage:
            return True  # each of them will meet it
        for repair, verdict in zip(group, verdicts or [], strict=False):
            repair.verdict = verdict
        return True

    async def _take(self, repair: Repair) -> None:
        repair.reason = repair.detail = None  # another process may have had the answer that was missing before
        try:
            await self._repair(repair)
        except Deferred:
            self.waiting += 1
            return
        except AnswerError as error:
            repair.drop(error.drop_reason, str(error))
        except UnreadableImage as error:
            repair.drop("unreadable_image", str(error))
        self.outcomes[repair.reason or "edited"] += 1
        if self.watch is not None:
            self.watch(repair)
        self._show()

    async def _repair(self, repair: Repair) -> None:
        direction = repair.direction
        if self.audited:
            if repair.verdict is None:
                repair.verdict = await audit(self.chat, direction, **self._shown(repair, "q", "gt", "fp"))
            if reason := repair.verdict.drop_reason:
                return repair.drop(reason)
        repair.instruction = await instruct(self.chat, direction, **self._shown(repair, "q", "fp"))
        if direction == "i2t":
            repair.error_types = error_types(repair.instruction)
        if is_no_change(direction, repair.instruction):
            return repair.drop("no_op", "the instruction finds nothing to change")
        if direction == "t2i":
            repair.candidates = await self.images.make(repair.at["fp"], repair.instruction)
            if not any(repair.candidates):
                repair.drop("editor_failed", "no candidate could be made")
        else:
            repair.candidates = await self._edit_caption(repair)

    async def _edit_caption(self, repair: Repair) -> list[str | None]:
        return await edit_caption(
            self.chat,
            self.captions[repair.at["fp"]],
            repair.instruction,
            candidates=self.candidates,
            seed=self.seed,
            image=self.sources.url(repair.at["q"]) if self.attach_image else None,
            together=self.together,
        )

    def _shown(self, repair: Repair, *roles: str) -> dict[str, str]:
        """What the LLM is shown: captions as they are, images as data URLs."""
        kinds = MODALITIES[repair.direction]
        places = ((role, repair.at[role]) for role in roles)
        return {role: self.captions[at] if kinds[role] == "text" else self.sources.url(at) for role, at in places}

    def _show(self) -> None:
        dollars = self.chat.dollars + self.images.usage.dollars
        dropped = self.outcomes.total() - self.outcomes["edited"]
        self.bar.set_postfix_str(f"{self.outcomes['edited']} edited, {dropped} dropped, ${dollars:.2f}", refresh=False)
        self.bar.update()


async def work_through(chat: ChatModel, workers: list[Coroutine], *images: Candidates) -> None:
    """Let workers work until all are through or one fails; then what is on its way may arrive, nothing new is sent, and all end."""
    tasks = [asyncio.create_task(worker) for worker in workers]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()  # raises what the worker raised
    except BaseException:
        for candidates in images:  # before the LLM's answers are waited for: meanwhile many an image could be bought
            candidates.stop()
        raise
    finally:
        with suppress(TimeoutError):
            await asyncio.wait_for(chat.drain(), GRACE)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
