"""What a blend of base and tuned model gains, against what it keeps of the base: as rows and an SVG.

`templates/curve.html` draws it in a page, and `templates/blends.svg` in a file: a panel for each set of further
pairs. A description holds its numbers as a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any, TypeAlias

import pandas as pd

from repair_hf.analysis.forest import STEPS, WIDTH
from repair_hf.analysis.tables import SIDES

LEFT, RIGHT, ABOVE, PLOT, BELOW = 34, 26, 38, 150, 40  # margins of a panel, and the height between them
LETTER, TALL = 6.5, 11.0  # of a label: width of a letter, and height
COLORS = ("first", "second", "third", "fourth", "fifth", "sixth")  # classes of lines in the template
# Where a label may stand beside its point: shift of its left or right end, shift of its baseline, which end.
PLACES = ((5, -5, "start"), (-5, -5, "end"), (5, 13, "start"), (-5, 13, "end"), (9, 4, "start"), (-9, 4, "end"))


def blend_rows(
    metrics: Mapping[str, Mapping[str, Any]], weights: Mapping[str, float], also: Sequence[str]
) -> pd.DataFrame:
    """Return a row for the base (blend 0) and each blend of each method, the columns of `curve`.

    Args:
        metrics: Of the base and of each blend, by short name.
        weights: Of each blend, by its name `METHOD@WEIGHT`.
        also: Names of the further pairs.
    """
    base = next(name for name in metrics if name not in weights)
    points: dict[str, dict[float, Mapping[str, Any]]] = {}  # of each method, by weight
    for name, weight in weights.items():
        points.setdefault(name.rpartition("@")[0], {0.0: metrics[base]})[weight] = metrics[name]
    rows = [
        (further, method, weight, _mean_recall(point), _mean_recall(point, f"{further}_"))
        for further in also
        for method, by_weight in points.items()
        for weight, point in sorted(by_weight.items())
    ]
    return pd.DataFrame(rows, columns=["also", "method", "blend", "gained", "kept"])


def _mean_recall(point: Mapping[str, Any], prefix: str = "") -> float:
    """Average R@1 over both directions, in %."""
    return 100 * sum(point[f"{prefix}{side}_R@1"] for side in SIDES) / len(SIDES)


Box: TypeAlias = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Point:
    """The base or a blend: where it is drawn, and its label."""

    x: float
    y: float
    label: str
    label_x: float
    label_y: float
    anchor: str  # which end of the label is at `label_x`


@dataclass(frozen=True)
class Line:
    """A method: the class of its color, and the points of its blends."""

    color: str
    points: list[Point]


@dataclass(frozen=True)
class Panel:
    """One set of further pairs: where it is drawn, and the scales as labels with their places."""

    name: str
    top: float
    base: Point  # where every line begins
    lines: list[Line]
    across: list[tuple[str, float]]
    up: list[tuple[str, float]]


@dataclass(frozen=True)
class Curve:
    """What the template draws."""

    panels: list[Panel]
    height: float
    description: str

    macro: str = "curve"
    width: int = WIDTH
    left: float = LEFT
    right: float = WIDTH - RIGHT
    plot: float = PLOT


def curve(rows: pd.DataFrame) -> Curve:
    """Lay out what each method's blends gain, to the right, against what they keep of the base, upwards.

    Args:
        rows: Columns `also` (what is kept: a panel for each value), `method` (a line each), `blend` (weight of the
            tuned model; 0 is the base, which each method has), `gained` and `kept` (R@1 in %, of both directions).
    """
    panels, top = [], float(ABOVE)
    for other, own in rows.groupby("also", sort=False):
        x, across = _scale(own["gained"], LEFT, WIDTH - RIGHT)
        y, up = _scale(own["kept"], top + PLOT, top)
        start = own[own["blend"] == 0].iloc[0]
        taken = [_dot(x(row.gained), y(row.kept)) for row in own.itertuples()]
        base = _labelled("base", x(start["gained"]), y(start["kept"]), taken)
        lines = []
        for place, (method, blends) in enumerate(own[own["blend"] > 0].groupby("method", sort=False)):
            labels = [f"{weight:g}" for weight in blends["blend"]]
            labels[-1] += f" {method}"
            places = zip(labels, map(x, blends["gained"]), map(y, blends["kept"]), strict=True)
            points = [_labelled(label, left, down, taken) for label, left, down in places]
            lines.append(Line(COLORS[place % len(COLORS)], points))
        panels.append(Panel(str(other), top, base, lines, across, up))
        top += PLOT + BELOW + ABOVE
    described = "; ".join(
        f"{row.method}, blend {row.blend:g}: {row.gained:.1f} and on {row.also} {row.kept:.1f}"
        for row in rows.itertuples()
    )
    return Curve(panels, top - ABOVE, f"R@1 in %, by weight of the tuned model. {described}.")


def _labelled(label: str, x: float, y: float, taken: list[Box]) -> Point:
    """Put a label beside a point, where it covers no point and no earlier label; its own box joins those taken."""
    options = []
    for across, down, anchor in PLACES:
        end = x + across
        left = end if anchor == "start" else end - LETTER * len(label)
        box = (left, y + down - TALL, left + LETTER * len(label), y + down)
        covered = sum(_overlap(box, other) for other in taken) + max(0.0, box[2] - WIDTH) * TALL
        options.append((covered, Point(x, y, label, end, y + down, anchor), box))
    _, point, box = min(options, key=lambda option: option[0])
    taken.append(box)
    return point


def _dot(x: float, y: float) -> Box:
    """Return the place of a point's circle."""
    return x - 4, y - 4, x + 4, y + 4


def _overlap(one: Box, other: Box) -> float:
    """Return the area that two boxes share."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)


def _scale(values: pd.Series, start: float, end: float) -> tuple[Any, list[tuple[str, float]]]:
    """Map percentages to places between two ends; return the function, and labels with their places."""
    step = next((step for step in STEPS if values.max() - values.min() <= 4 * step), STEPS[-1])
    first = floor(values.min() / step)
    last = max(ceil(values.max() / step), first + 1)

    def place(value: float) -> float:
        return round(start + (value / step - first) / (last - first) * (end - start), 2)

    return place, [(f"{number * step:g}", place(number * step)) for number in range(first, last + 1)]
