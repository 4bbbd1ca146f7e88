"""Rows: what became of failures, in the columns of records.

In:  failures as they were mined, and as they came out of the stream.
Out: the refusal of failures that were mined from other pairs; rows of `records` and `dropped`.
"""

from __future__ import annotations

import numpy as np
from datasets import Dataset

from repair_hf.pairs.dataset import Pairs
from repair_hf.records.columns import MODALITIES, SOURCES
from repair_hf.records.dataset import record_id
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.sources import SourceImages
from repair_hf.synthesis.stream import Repair

SCORES = ("fp_score", "fp_rank", "gt_score", "gt_rank")


class Rows:
    """Tells failures in words that hold without the pairs.

    Args:
        pairs: What the failures were mined from.
        sources: Their images.
    """

    def __init__(self, pairs: Pairs, sources: SourceImages) -> None:
        self.sources = sources
        self.captions: list[str] = pairs.captions["caption"][:]
        self.ids = {"text": pairs.captions["caption_id"][:], "image": pairs.images["image_id"][:]}

    def check(self, failures: Dataset) -> None:
        """Refuse failures of other pairs."""
        if missing := {"direction", *SOURCES, *SCORES} - set(failures.column_names):
            raise UserError(
                f"Failures lack {sorted(missing)}; they have {failures.column_names}. Make them with `repair-hf mine`."
            )
        rows = failures.select_columns(["direction", *SOURCES]).to_list()
        counts = {kind: len(ids) for kind, ids in self.ids.items()}
        for role in SOURCES:
            is_outside = [row[role] >= counts[MODALITIES[row["direction"]][role]] for row in rows]
            named = failures[f"{role}_id"][:] if f"{role}_id" in failures.column_names else None
            is_other = [
                outside or (named is not None and self._id(row["direction"], role, row[role]) != name)
                for row, outside, name in zip(rows, is_outside, named or [None] * len(rows), strict=True)
            ]
            if any(is_other):
                raise UserError(
                    f"{sum(is_other)} of {len(rows)} failures name a {role} that these pairs do not have in that place, first in "
                    f"row {int(np.argmax(is_other))}: they were mined from other pairs. Give the pairs and the split that `repair-hf mine` had."
                )

    def record(self, repair: Repair) -> dict:
        """The columns of a record but for who made it."""
        row = self.told(repair)
        for role in SOURCES:
            if MODALITIES[repair.direction][role] == "image":
                row[f"{role}_image"] = self.sources.reference(repair.at[role])
        choice, edit = repair.choice, repair.candidates[repair.choice.candidate]
        if repair.direction == "t2i":
            row["edit_image"] = {"bytes": None, "path": str(edit.absolute())}
            row["record_id"] = record_id(row, edit.read_bytes())
        else:
            row["edit_text"] = edit
            row["record_id"] = record_id(row, edit)
        return row | {
            "edit_similarity": choice.similarity,
            "candidate_similarities": list(choice.similarities),
            "candidate": choice.candidate,
        }

    def told(self, repair: Repair) -> dict:
        """The columns that records and dropped failures share."""
        row = {"direction": repair.direction} | {name: repair.row[name] for name in SCORES}
        for role in SOURCES:
            index = repair.at[role]
            row[f"{role}_id"] = self._id(repair.direction, role, index)
            if MODALITIES[repair.direction][role] == "text":
                row[f"{role}_text"] = self.captions[index]
        if repair.verdict is not None:
            row |= {"gt_reason": repair.verdict.gt_reason, "fp_reason": repair.verdict.fp_reason}
        if repair.reason is not None:
            row |= {"reason": repair.reason, "detail": repair.detail}
        return row | {"edit_instruction": repair.instruction, "error_types": repair.error_types}

    def _id(self, direction: str, role: str, index: int) -> str:
        return self.ids[MODALITIES[direction][role]][index]
