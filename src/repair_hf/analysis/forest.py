"""A forest plot: differences with their intervals and a line at 0, as an inline SVG.

`templates/forest.html` draws it. Beside each interval stand its numbers, and a description holds them all as a text.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

import pandas as pd

from repair_hf.analysis.tables import difference_cell

WIDTH, SIDE = 340, 12  # of the drawing, and of its margins: the width of a phone, so that letters keep their size
TOP, ROW, FOOT = 26, 34, 24  # heights of the title, a difference, and the scale
LONGEST = 34  # letters of a name
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)  # of the scale, in points


@dataclass(frozen=True)
class Mark:
    """A difference: its name and numbers, and where they are drawn."""

    name: str
    numbers: str  # such as `+1.9 [+0.3, +3.5] *`
    kind: str  # `rise` or `fall` if the interval excludes 0, else `open`
    y: float
    x: float
    low: float
    high: float


@dataclass(frozen=True)
class Forest:
    """What the template draws."""

    title: str
    marks: list[Mark]
    ticks: list[tuple[str, float]]  # labels of the scale, with their x
    zero: float
    height: float
    description: str

    macro: str = "forest"
    width: int = WIDTH


def forest(title: str, data: pd.DataFrame) -> Forest:
    """Lay out differences below a title.

    Args:
        title: What differs from what.
        data: Columns `name`, `metric`, `difference`, `low` and `high`; shares, as fractions.
    """
    ends = 100 * data[["low", "high", "difference"]].to_numpy()
    step = next((step for step in STEPS if ends.max() - ends.min() <= 6 * step), STEPS[-1])
    first, last = floor(min(ends.min(), -step) / step), ceil(max(ends.max(), step) / step)  # 0 is never at an edge

    def across(points: float) -> float:
        share = (points - first * step) / ((last - first) * step)
        return round(SIDE + share * (WIDTH - 2 * SIDE), 2)

    marks = []
    for place, row in enumerate(data.to_dict("records")):
        kind = "rise" if row["low"] > 0 else "fall" if row["high"] < 0 else "open"
        x, low, high = (across(100 * row[name]) for name in ("difference", "low", "high"))
        numbers = difference_cell(row["metric"], row).strip()
        marks.append(Mark(row["name"], numbers, kind, TOP + place * ROW, x, low, high))
    half = (LONGEST - 1) // 2
    return Forest(
        title=title if len(title) <= LONGEST else f"{title[:half]}…{title[-half:]}",
        marks=marks,
        ticks=[(f"{place * step:g}", across(place * step)) for place in range(first, last + 1)],
        zero=across(0),
        height=TOP + len(marks) * ROW + FOOT,
        description=f"{title}, in points, with 95% intervals. "
        + "; ".join(f"{mark.name}: {mark.numbers}" for mark in marks),
    )
