"""Finished failures: kept in a file until the run ends, then selected among and written as two datasets."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from repair_hf.encoder.embedder import Embedder
from repair_hf.records.columns import DIRECTIONS, DROPPED_FEATURES
from repair_hf.records.dataset import build
from repair_hf.runtime.progress import Progress
from repair_hf.synthesis.options import Select
from repair_hf.synthesis.record_builder import RecordBuilder, RepairTask
from repair_hf.synthesis.selection import Selection, select_captions, select_images

RECORDS, DROPPED = "records.arrow", "dropped.arrow"


class TaskFile:
    """A file of finished tasks, because a million of them would fill the memory.

    Args:
        path: The file; it is made anew.
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
            pickle.dump(task, file)
        if task.reason is None:
            self.fps[task.direction][task.number] = task.at["fp"]

    def read(self, number: int) -> RepairTask:
        with self.path.open("rb") as file:
            file.seek(self.offsets[number])
            return pickle.load(file)


def build_records(
    folder: Path,
    files: Sequence[TaskFile],
    builder: RecordBuilder,
    encoder: Embedder,
    select: Select,
    made_by: dict[str, Any],
) -> tuple[Dataset, Dataset]:
    """Select among the candidates, and build the records and the dropped failures in the order of the failures.

    Args:
        folder: Gets the files behind the two datasets.
        files: Finished tasks, of each process; they are deleted.
        builder: Looks up captions and images.
        encoder: Compares candidates.
        select: Which candidate is kept.
        made_by: Columns of all rows.
    """
    owner = np.argmax([file.offsets for file in files], 0)  # the file that has each task
    numbers = np.flatnonzero(np.max([file.offsets for file in files], 0) >= 0)
    selections = _select(files, owner, builder, encoder, select)

    def rows(*, dropped: bool) -> Iterator[dict[str, Any]]:
        for number in map(int, numbers):
            task = files[owner[number]].read(number)
            task.selection = selections.get(number)
            if task.selection is not None and task.selection.candidate is None:
                task.drop("no_op", "no candidate differs from the false positive")
            if dropped == (task.reason is not None):
                yield (builder.columns(task) if dropped else builder.record(task)) | made_by

    records = build(rows(dropped=False), folder / RECORDS)
    failures = build(rows(dropped=True), folder / DROPPED, DROPPED_FEATURES)
    for file in files:
        file.path.unlink()
    return records, failures


def _select(
    files: Sequence[TaskFile], owner: np.ndarray, builder: RecordBuilder, encoder: Embedder, select: Select
) -> dict[int, Selection]:
    """Select for each task with candidates, by its number."""
    selections: dict[int, Selection] = {}
    for direction in DIRECTIONS:
        fps = np.max([file.fps[direction] for file in files], 0)  # (F,)
        numbers = [number for number in np.argsort(fps, kind="stable").tolist() if fps[number] >= 0]
        candidates = (files[owner[number]].read(number).candidates for number in numbers)
        if direction == "i2t":
            title, captions = "Comparing captions", (builder.captions[fps[number]] for number in numbers)
            chosen = select_captions(encoder, zip(captions, candidates, strict=True), select=select)
        else:
            title, images = "Comparing images", (int(fps[number]) for number in numbers)
            chosen = select_images(encoder, builder.sources, zip(images, candidates, strict=True), select=select)
        with Progress(total=len(numbers), desc=title, unit=" failures") as bar:
            for number, selection in zip(numbers, chosen, strict=True):
                selections[number] = selection
                bar.update()
    return selections
