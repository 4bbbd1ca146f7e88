"""Check selected edits: ask whether the caption and the image, of which one is the edit, fit each other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from scipy import stats

from repair_hf.llm.answers import AnswerError
from repair_hf.llm.asker import Asker
from repair_hf.records.columns import DIRECTIONS
from repair_hf.runtime.progress import Progress
from repair_hf.synthesis.loop import work_through
from repair_hf.synthesis.record_builder import RecordBuilder, RepairTask
from repair_hf.synthesis.schemas import ERROR_TYPES, Fit
from repair_hf.synthesis.selection import Selection
from repair_hf.synthesis.sources import UnreadableImage

ALL = "all"  # in place of a number of edits
EVERY_TYPE = "all"  # in place of an error type


@dataclass
class Checks:
    """What was found of selected edits; each is named by the number of its task."""

    fits: dict[int, bool | None] = field(default_factory=dict)  # the selected edit; None without a usable answer
    kept: dict[int, Selection] = field(default_factory=dict)  # with `all`: the edit that fits
    dropped: dict[int, tuple[str, str]] = field(default_factory=dict)  # with `all`: reason and detail
    waiting: set[int] = field(default_factory=set)  # not answered yet
    kinds: dict[int, tuple[str, list[str]]] = field(default_factory=dict)  # direction and error types

    def rows(self) -> list[dict[str, Any]]:
        """The rows of `check_rows` of the selected edits. An edit counts for each of its error types."""
        counts: dict[tuple[str, str], tuple[int, int]] = {}
        for direction in DIRECTIONS:
            for error_type in (EVERY_TYPE, *ERROR_TYPES):
                answers = [
                    fits
                    for number, fits in self.fits.items()
                    if fits is not None
                    and self.kinds[number][0] == direction
                    and error_type in (EVERY_TYPE, *self.kinds[number][1])
                ]
                if answers:
                    counts[direction, error_type] = len(answers), sum(answers)
        return check_rows(counts)

    def apply(self, task: RepairTask) -> None:
        """Note in a task what was found of its edit."""
        task.fits = self.fits.get(task.number)
        if task.number in self.kept:
            task.selection, task.fits = self.kept[task.number], True
        if task.number in self.dropped:
            task.drop(*self.dropped[task.number])


def to_check(selections: Mapping[int, Selection], count: int | Literal["all"], failures: int, seed: int) -> list[int]:
    """Return the tasks whose edits are checked: all that have one, or the first so many of the shuffled failures."""
    drawn = np.random.default_rng(seed).permutation(failures).tolist()
    with_edit = [number for number in drawn if number in selections and selections[number].candidate is not None]
    return with_edit[:count] if isinstance(count, int) else with_edit


async def check_edits(
    checks: Checks,
    tasks: Iterable[RepairTask],
    selections: Mapping[int, Selection],
    asker: Asker,
    builder: RecordBuilder,
    *,
    replaces: bool,
) -> None:
    """Check the selected edits of tasks, many at once; `checks.waiting` holds those that have no answer yet.

    Args:
        checks: Gets what was found.
        tasks: Those to check.
        selections: What was selected, by task.
        asker: The LLM.
        builder: Looks up captions and images.
        replaces: An edit that does not fit gives way to the next nearest candidate, and without one its failure is
            dropped.

    Raises:
        RunStopped: If the run cannot go on, or answers come with a batch.
    """

    async def work(task: RepairTask) -> None:
        await _check(checks, task, selections[task.number], asker, builder, replaces=replaces)
        checks.waiting.discard(task.number)
        bar.update()

    with Progress(total=len(checks.waiting), desc="Checking", unit=" edits") as bar:
        await work_through(asker, [tasks], work)


async def _check(
    checks: Checks, task: RepairTask, selection: Selection, asker: Asker, builder: RecordBuilder, *, replaces: bool
) -> None:
    number, reason = task.number, ""
    checks.kinds[number] = task.direction, task.error_types
    for candidate in selection.order if replaces else selection.order[:1]:
        try:
            edit = await asyncio.to_thread(builder.shown_edit, task, candidate)
            fits, reason = await ask_fit(task, edit, asker, builder)
        except (AnswerError, UnreadableImage) as error:
            checks.fits.setdefault(number, None)
            if replaces:
                checks.dropped[number] = error.drop_reason, str(error)
            return
        checks.fits.setdefault(number, fits)
        if fits:
            checks.kept[number] = Selection(candidate, selection.similarities)
            return
    if replaces:
        checks.dropped[number] = "edit_false", reason


async def ask_fit(task: RepairTask, edit: str, asker: Asker, builder: RecordBuilder) -> tuple[bool, str]:
    """Ask whether an edit fits its query, and why; `edit` is a caption, or an image (`ImageURL`).

    Raises:
        AnswerError, Deferred, RunStopped: As `Asker.ask`.
    """
    query = builder.shown(task, "q")["q"]
    image, caption = (edit, query) if task.direction == "t2i" else (query, edit)
    messages = asker.prompts.chat("check", checked_image=image, checked_caption=caption)
    answer: Any = await asker.ask(messages, stage="check", direction=task.direction, schema=Fit)
    return answer.fits, answer.reason


def check_rows(counts: Mapping[tuple[str, str], tuple[int, int]]) -> list[dict[str, Any]]:
    """Return a row for each direction and error type: edits `checked`, those that `fit`, and their `share`.

    `low` and `high` are its 95% interval, of Jeffreys' prior.

    Args:
        counts: (direction, error type) -> how many were checked, and how many fit.
    """
    rows = []
    for (direction, error_type), (checked, fit) in counts.items():
        low, high = stats.beta.ppf([0.025, 0.975], fit + 0.5, checked - fit + 0.5).tolist()
        share = fit / checked
        row = {"direction": direction, "error_type": error_type, "checked": checked, "fit": fit, "share": share}
        # where all or none fit, the interval reaches as far
        rows.append(row | {"low": min(low, share), "high": max(high, share)})
    return rows
