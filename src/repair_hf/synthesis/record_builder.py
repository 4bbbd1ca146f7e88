"""Repair tasks made from mined failures, and rows of `records` and `dropped` made from repair tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import Dataset

from repair_hf.mining.failures import check_columns
from repair_hf.pairs.dataset import Pairs
from repair_hf.records.columns import MODALITIES, SOURCES
from repair_hf.records.dataset import record_id
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.schemas import Verdict
from repair_hf.synthesis.selection import Selection
from repair_hf.synthesis.sources import SourceImages, UnreadableImage, image_url

SCORES = ("fp_score", "fp_rank", "gt_score", "gt_rank")
READ_AT_ONCE = 1000  # failures


@dataclass
class RepairTask:
    """One failure on its way to a record."""

    number: int  # its place among the failures
    row: Mapping[str, Any]
    at: dict[str, int]  # role (`q`, `gt`, `fp`) -> row in the pairs' captions or images
    verdict: Verdict | None = None
    instruction: str | None = None
    error_types: list[str] = field(default_factory=list)
    candidates: list[Any] = field(default_factory=list)  # (M,) captions or files; None where there is none
    selection: Selection | None = None
    fits: bool | None = None  # whether the selected edit fits the query; None if it was not checked
    reason: str | None = None
    detail: str | None = None

    @property
    def direction(self) -> str:
        return self.row["direction"]

    def drop(self, reason: str, detail: str | None = None) -> None:
        """Give up on this failure for a reason."""
        self.reason, self.detail = reason, detail


class RecordBuilder:
    """Look up the captions and images of failures mined from `pairs`, and build their rows."""

    def __init__(self, pairs: Pairs, sources: SourceImages) -> None:
        self.pairs, self.sources = pairs, sources
        self.captions: list[str] = pairs.captions["caption"][:]
        self.ids: dict[str, list[str]] = {
            "text": pairs.captions["caption_id"][:],
            "image": pairs.images["image_id"][:],
        }

    def check(self, failures: Dataset) -> None:
        """Check that failures were mined from these pairs.

        Raises:
            UserError: If columns are missing or wrong, or an id stands at another place in these pairs.
        """
        check_columns(failures)
        directions = failures["direction"][:]
        for role in SOURCES:
            ids = [self.ids[MODALITIES[direction][role]] for direction in directions]
            names = failures[f"{role}_id"][:] if f"{role}_id" in failures.column_names else [None] * len(ids)
            is_other = [
                not 0 <= at < len(known) or name not in (None, known[at])
                for at, known, name in zip(failures[role][:], ids, names, strict=True)
            ]
            if any(is_other):
                raise UserError(
                    f"{sum(is_other)} of {len(ids)} failures were mined from other pairs: the `{role}` of row "
                    f"{int(np.argmax(is_other))} is not in these. Give the pairs and the split of `repair-hf mine`."
                )

    def names(self, failures: Dataset) -> set[tuple[str, str, str]]:
        """(direction, q_id, fp_id) of mined failures."""
        rows = zip(*(failures[column][:] for column in ("direction", "q", "fp")), strict=True)
        return {(way, self._id(way, "q", q), self._id(way, "fp", fp)) for way, q, fp in rows}

    def _id(self, direction: str, role: str, row: int) -> str:
        return self.ids[MODALITIES[direction][role]][row]

    def tasks(
        self, failures: Dataset, direction: str, owns: Callable[[str], bool] | None = None
    ) -> Iterator[RepairTask]:
        """Make the tasks of a direction's failures one by one; of several processes, those that this one `owns`."""
        number = -1
        for table in failures.with_format("arrow").iter(READ_AT_ONCE):
            for row in table.to_pylist():
                number += 1
                if row["direction"] == direction:
                    task = self.task(number, row)
                    if owns is None or owns(self.content(task, "fp")):
                        yield task

    def task(self, number: int, row: Mapping[str, Any]) -> RepairTask:
        """Make the task of a mined failure. A caption's ground truth is its image; an image's is its first caption."""
        q, is_t2i = row["q"], row["direction"] == "t2i"
        gt = self.pairs.caption_image[q] if is_t2i else self.pairs.captions_of(q)[0]
        return RepairTask(number, row, {"q": q, "gt": int(gt), "fp": row["fp"]})

    def shown(self, task: RepairTask, *roles: str) -> dict[str, str]:
        """What the LLM sees of a failure: captions as text, and what stands for images (`ImageURL`)."""
        kinds = MODALITIES[task.direction]
        return {
            role: self.captions[task.at[role]] if kinds[role] == "text" else self.sources.url(task.at[role])
            for role in roles
        }

    def shown_edit(self, task: RepairTask, candidate: int) -> str:
        """What the LLM sees of a candidate, as `shown`."""
        edit = task.candidates[candidate]
        return edit if isinstance(edit, str) else image_url(edit.read_bytes(), self.sources.longest_side)

    def content(self, task: RepairTask, role: str) -> str:
        """A caption's text, or a digest of an image's file: equal for equal content."""
        at = task.at[role]
        if MODALITIES[task.direction][role] == "text":
            return self.captions[at]
        try:
            return self.sources.digest(at)
        except UnreadableImage:
            return self.ids["image"][at]

    def record(self, task: RepairTask) -> dict[str, Any]:
        """The columns of a record, except who made it. The task needs a selected candidate."""
        row = self.columns(task)
        for role in SOURCES:
            if MODALITIES[task.direction][role] == "image":
                row[f"{role}_image"] = self.sources.reference(task.at[role])
        selection: Any = task.selection
        edit = task.candidates[selection.candidate]
        if task.direction == "t2i":
            row["edit_image"] = {"bytes": None, "path": str(edit.absolute())}
            row["record_id"] = record_id(row, edit.read_bytes())
        else:
            row["edit_text"] = edit
            row["record_id"] = record_id(row, edit)
        return row | {
            "edit_similarity": selection.similarity,
            "candidate_similarities": list(selection.similarities),
            "candidate": selection.candidate,
            "edit_fits": task.fits,
        }

    def columns(self, task: RepairTask) -> dict[str, Any]:
        """The columns that records and dropped failures share."""
        row: dict[str, Any] = {"direction": task.direction} | {name: task.row[name] for name in SCORES}
        for role in SOURCES:
            kind = MODALITIES[task.direction][role]
            row[f"{role}_id"] = self.ids[kind][task.at[role]]
            if kind == "text":
                row[f"{role}_text"] = self.captions[task.at[role]]
        if task.verdict is not None:
            row |= {"gt_reason": task.verdict.gt_reason, "fp_reason": task.verdict.fp_reason}
        if task.reason is not None:
            row |= {"reason": task.reason, "detail": task.detail}
        return row | {"edit_instruction": task.instruction, "error_types": task.error_types}
