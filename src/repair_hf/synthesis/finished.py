"""Finished failures: kept in a file until the run ends, then selected among, checked, and written as two datasets."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from pydantic import TypeAdapter

from repair_hf.encoder.embedder import Embedder
from repair_hf.llm.asker import Asker
from repair_hf.records.columns import DIRECTIONS, DROPPED_FEATURES
from repair_hf.records.dataset import build, save_records
from repair_hf.runtime.progress import Progress
from repair_hf.synthesis.checks import ALL, Checks, check_edits, to_check
from repair_hf.synthesis.loop import run_to_stop
from repair_hf.synthesis.options import SynthesizeOptions
from repair_hf.synthesis.record_builder import RecordBuilder, RepairTask
from repair_hf.synthesis.selection import Selection, select_captions, select_images

logger = logging.getLogger(__name__)

RECORDS, DROPPED = "records.arrow", "dropped.arrow"
COPY = 0.999  # similarity of an edited image to its source from which on it counts as a copy
MANY = 0.2  # share of copies that is a warning

_TASK = TypeAdapter(RepairTask)


class TaskFile:
    """A file of finished tasks, one a line, because a million of them would fill the memory.

    Args:
        path: The file, JSON Lines; it is made anew.
        count: How many failures there are.

    Attributes:
        offsets: Where each task begins in the file, (F,); -1 without one.
        fps: By direction, the false positive of each task that has candidates, (F,); -1 of other tasks.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.offsets = path, np.full(count, -1)
        self.fps = {direction: np.full(count, -1) for direction in DIRECTIONS}
        path.write_bytes(b"")

    def add(self, task: RepairTask) -> None:
        with self.path.open("ab") as file:
            self.offsets[task.number] = file.tell()
            file.write(_TASK.dump_json(task) + b"\n")
        if task.reason is None:
            self.fps[task.direction][task.number] = task.at["fp"]

    def read(self, number: int) -> RepairTask:
        with self.path.open("rb") as file:
            file.seek(self.offsets[number])
            task = _TASK.validate_json(file.readline())
        if task.direction == "t2i":
            task.candidates = [path and Path(path) for path in task.candidates]
        return task


class FinishedTasks:
    """The finished tasks of all processes, by their place among the failures.

    Args:
        files: Those of each process.

    Attributes:
        failures: How many failures there are.
        numbers: The tasks, in order.
    """

    def __init__(self, files: Sequence[TaskFile]) -> None:
        self._files = files
        offsets = np.stack([file.offsets for file in files])  # (processes, F)
        self._owner, self.failures = np.argmax(offsets, 0), offsets.shape[1]
        self.numbers: list[int] = np.flatnonzero(np.max(offsets, 0) >= 0).tolist()

    def read(self, number: int) -> RepairTask:
        return self._files[self._owner[number]].read(number)

    def with_candidates(self, direction: str) -> tuple[list[int], np.ndarray]:
        """Return the tasks of a direction that have candidates, by false positive; and the false positive of each."""
        fps = np.max([file.fps[direction] for file in self._files], 0)  # (F,)
        numbers = np.argsort(fps, kind="stable")
        numbers = numbers[fps[numbers] >= 0]
        return numbers.tolist(), fps[numbers]

    def delete(self) -> None:
        for file in self._files:
            file.path.unlink()


class Finish:
    """What is made of finished tasks: selections, checks, and the two datasets.

    Args:
        folder: Gets the datasets.
        tasks: Finished tasks.
        builder: Looks up captions and images.
        encoder: Compares candidates.
        options: Which candidate is kept, and how many edits are checked.
        made_by: Columns of all rows.
    """

    def __init__(
        self,
        folder: Path,
        tasks: FinishedTasks,
        builder: RecordBuilder,
        encoder: Embedder,
        options: SynthesizeOptions,
        made_by: dict[str, Any],
    ) -> None:
        self.folder, self.tasks, self.builder, self.encoder = folder, tasks, builder, encoder
        self.options, self.made_by = options, made_by
        self.selections = self._select()

    def check(self, asker: Asker, stop: BaseException | None) -> tuple[Checks, BaseException | None]:
        """Check selected edits; return what was found, and what stopped the run. A stopped run asks nothing more."""
        checks, count = Checks(), self.options.check_edits
        numbers = to_check(self.selections, count, self.tasks.failures, self.options.seed)
        if stop is None or count == ALL:
            checks.waiting.update(numbers)
        if stop is not None or not numbers:
            return checks, stop
        queue = map(self.tasks.read, numbers)
        work = check_edits(checks, queue, self.selections, asker, self.builder, replaces=count == ALL)
        return checks, run_to_stop(work)

    def save(self, checks: Checks) -> tuple[Dataset, Dataset]:
        """Write the records and the dropped failures, in the order of the failures.

        A failure whose check has no answer yet is in neither.
        """

        finished = [number for number in self.tasks.numbers if number not in checks.waiting]
        dropped = [number for number in finished if self._is_dropped(number, checks)]
        kept = sorted(set(finished) - set(dropped))

        def read(numbers: list[int]) -> Iterator[RepairTask]:
            for number in numbers:
                task = self.tasks.read(number)
                task.selection = self.selections.get(number)
                if task.selection is not None and task.selection.candidate is None:
                    task.drop("no_op", "no candidate differs from the false positive")
                checks.apply(task)
                yield task

        rows = (self.builder.record(task) | self.made_by for task in read(kept))
        records = build(rows, self.folder / RECORDS)
        rows = (self.builder.columns(task) | self.made_by for task in read(dropped))
        failures = build(rows, self.folder / DROPPED, DROPPED_FEATURES)
        self.tasks.delete()
        _warn_of_copies(records)
        save_records(self.folder, records, failures, embed_source_images=self.options.embed_source_images)
        return records, failures

    def _is_dropped(self, number: int, checks: Checks) -> bool:
        """Return whether a task has no candidate, none that changes anything, or an edit that does not fit."""
        selection = self.selections.get(number)
        return selection is None or selection.candidate is None or number in checks.dropped

    def _select(self) -> dict[int, Selection]:
        """Select for each task with candidates, by its number."""
        selections: dict[int, Selection] = {}
        for direction in DIRECTIONS:
            numbers, fps = self.tasks.with_candidates(direction)
            candidates = (self.tasks.read(number).candidates for number in numbers)
            if direction == "i2t":
                title, captions = "Comparing captions", (self.builder.captions[fp] for fp in fps)
                rows = zip(captions, candidates, strict=True)
                chosen = select_captions(self.encoder, rows, select=self.options.select)
            else:
                title, images = "Comparing images", zip(map(int, fps), candidates, strict=True)
                chosen = select_images(self.encoder, self.builder.sources, images, select=self.options.select)
            with Progress(total=len(numbers), desc=title, unit=" failures") as bar:
                for number, selection in zip(numbers, chosen, strict=True):
                    selections[number] = selection
                    bar.update()
        return selections


def _warn_of_copies(records: Dataset) -> None:
    """Warn if many edited images are almost equal to their source."""
    rows = zip(records["direction"][:], records["edit_similarity"][:], strict=True)
    similarities = [similarity for direction, similarity in rows if direction == "t2i"]
    copies = sum(similarity >= COPY for similarity in similarities)
    if copies and copies >= MANY * len(similarities):
        logger.warning(
            "%s of %s edited images have a similarity of %g or more to their source: the editor changed almost "
            "nothing. Look at them with `repair-hf show`, and see what --check-edits says.",
            f"{copies:,}",
            f"{len(similarities):,}",
            COPY,
        )
