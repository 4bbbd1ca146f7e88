"""Which edits to pay for: a share of a method's edits, the most promising failures first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from datasets import Dataset

from repair_hf.training.fills import uniforms

Order = Literal["random", "outranking", "gravest", "slightest", "i2t", "t2i"]
EPOCH, STREAM = 2**31, 4  # of the draws that decide among equals


@dataclass(frozen=True)
class Selection:
    """A share of the edits, in an order.

    | order | first come |
    |---|---|
    | `random` | any |
    | `outranking` | edits of failures with `fp_rank < gt_rank` |
    | `gravest` | those of the smallest margin, `gt_score - fp_score` |
    | `slightest` | those of the largest margin |
    | `i2t`, `t2i` | those of one direction; the other direction gives none |
    """

    order: Order
    share: float

    def of(self, records: Dataset) -> Dataset:
        """Select records with an edit. A direction alone may hold fewer than the share."""
        names = ["direction", "fp_rank", "gt_rank", "fp_score", "gt_score"]
        table = records.select_columns(names).to_pandas()
        margin = table["gt_score"] - table["fp_score"]
        first = {
            "random": np.zeros(len(table)),
            "outranking": table["fp_rank"] >= table["gt_rank"],
            "gravest": margin,
            "slightest": -margin,
        }
        key = np.asarray(first.get(self.order, np.zeros(len(table))), float)
        chance = uniforms(0, np.full(len(table), EPOCH), np.arange(len(table)), STREAM)
        order = np.lexsort([chance, key])
        if self.order in ("i2t", "t2i"):
            order = order[(table["direction"] == self.order).to_numpy()[order]]
        return records.select(np.sort(order[: round(self.share * len(records))]))
