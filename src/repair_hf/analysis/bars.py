"""Bars by direction, as `templates/bars.html` draws them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from repair_hf.analysis.tables import SIDES


@dataclass(frozen=True)
class Bar:
    """One number: its length in percent of the longest bar, and what stands beside it."""

    side: str  # class of its color: `i2t` or `t2i`
    length: float
    text: str


@dataclass(frozen=True)
class Bars:
    """Labels, each with a bar for each direction."""

    rows: list[tuple[str, list[Bar]]]

    macro: str = "bars"


def bars(table: pd.DataFrame, write: Callable[[float], str], *, is_log: bool = False) -> Bars:
    """Lay out bars.

    Args:
        table: First a column of labels, then one of numbers for each direction: `i2t` and `t2i`.
        write: Writes a number.
        is_log: Draw logarithms, so that small counts stay visible beside large ones.
    """
    sides = [name for name in table.columns if name in SIDES]
    scale = math.log1p if is_log else float
    longest = scale(table[sides].max(axis=None)) or 1.0
    rows = [
        (
            str(label),
            [
                Bar(side, round(100 * scale(value) / longest, 2), f"{SIDES[side]} {write(value)}")
                for side, value in zip(sides, values, strict=True)
            ],
        )
        for label, *values in table.iloc[:, [0]].join(table[sides]).itertuples(index=False)
    ]
    return Bars(rows)
