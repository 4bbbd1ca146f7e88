"""What a blend of base and tuned model gains, against what it keeps of the base: as rows and an SVG.

`templates/curve.html` draws it in a page, and `templates/blends.svg` in a file: a panel for each set of further
pairs. A description holds its numbers as a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import pandas as pd

from repair_hf.analysis.forest import STEPS, WIDTH
from repair_hf.analysis.tables import SIDES

LEFT, RIGHT, ABOVE, PLOT, BELOW = 34, 26, 30, 150, 40  # margins of a panel, and the height between them


def blend_rows(
    metrics: Mapping[str, Mapping[str, Any]], weights: Mapping[str, float], also: Sequence[str]
) -> pd.DataFrame:
    """Return R@1 in %, on the pairs (`gained`) and on further pairs (`kept`), of the base (weight 0) and each blend.

    Args:
        metrics: Of the base and of each blend, by short name.
        weights: Of each blend, by its name `MODEL@WEIGHT`.
        also: Names of the further pairs.
    """
    base = next(name for name in metrics if name not in weights)
    points: dict[str, dict[float, Mapping[str, Any]]] = {}  # of each tuned model, by weight
    for name, weight in weights.items():
        points.setdefault(name.rpartition("@")[0], {0.0: metrics[base]})[weight] = metrics[name]
    rows = [
        (further, model, side, weight, 100 * point[f"{side}_R@1"], 100 * point[f"{further}_{side}_R@1"])
        for further in also
        for model, by_weight in points.items()
        for side in SIDES
        for weight, point in sorted(by_weight.items())
    ]
    return pd.DataFrame(rows, columns=["also", "model", "direction", "weight", "gained", "kept"])


@dataclass(frozen=True)
class Line:
    """A direction: its class, its name, and its points, each with its weight."""

    side: str
    name: str
    points: list[tuple[str, float, float]]


@dataclass(frozen=True)
class Panel:
    """One set of further pairs: where it is drawn, and the scales as labels with their places."""

    name: str
    top: float
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
    """Lay out `blend_rows`: what is gained to the right, what is kept upwards."""
    panels, top = [], float(ABOVE)
    several = rows["model"].nunique() > 1
    for other, own in rows.groupby("also", sort=False):
        x, across = _scale(own["gained"], LEFT, WIDTH - RIGHT)
        y, up = _scale(own["kept"], top + PLOT, top)
        lines = [
            Line(
                str(side),
                f"{SIDES[str(side)]} {model}" if several else SIDES[str(side)],
                [(f"{point.weight:g}", x(point.gained), y(point.kept)) for point in line.itertuples()],
            )
            for (model, side), line in own.groupby(["model", "direction"], sort=False)
        ]
        panels.append(Panel(str(other), top, lines, across, up))
        top += PLOT + BELOW + ABOVE
    described = "; ".join(
        f"{model + ', ' if several else ''}{SIDES[side]}, weight {weight:g}: {gained:.1f} and on {other} {kept:.1f}"
        for other, model, side, weight, gained, kept in rows.itertuples(index=False)
    )
    return Curve(panels, top - ABOVE, f"R@1 in %, by weight of the tuned model. {described}.")


def _scale(values: pd.Series, start: float, end: float) -> tuple[Any, list[tuple[str, float]]]:
    """Map percentages to places between two ends; return the function, and labels with their places."""
    step = next((each for each in STEPS if values.max() - values.min() <= 4 * each), STEPS[-1])
    first = floor(values.min() / step)
    last = max(ceil(values.max() / step), first + 1)

    def place(value: float) -> float:
        return round(start + (value / step - first) / (last - first) * (end - start), 2)

    return place, [(f"{number * step:g}", place(number * step)) for number in range(first, last + 1)]
