"""The lines of the tables, and their differences with 95% intervals that cover images and seeds.

An estimate keeps its value with each seed, and how far each image moves it, so estimates of the same seeds and images
are subtracted pair by pair. The interval covers other images: queries of one image count together (cluster-robust
standard error). With several seeds it covers other seeds, too: by a t-distribution, whose half width is added in
quadrature.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from repair_hf.study.methods import PLAIN
from repair_hf.study.results import BASE, CONTRAST, Cell, Row

MEASURES = {  # the mean of each is compared
    "R@1": ("i2t", "t2i"),
    "contrast": CONTRAST,
    "kept": ("kept_i2t", "kept_t2i"),
}
Z = statistics.NormalDist().inv_cdf(0.975)
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5% quantiles, by degrees of freedom from 1


@dataclass(frozen=True)
class Estimate:
    """A mean, as a fraction: with each seed, (S,), and how far each image moves it, (N,)."""

    seeds: np.ndarray
    moved: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.seeds.mean())

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval, see the head of this file."""
        n, count = len(self.moved), len(self.seeds)
        half = Z * math.sqrt(float(np.square(self.moved).sum()) * n / max(n - 1, 1))
        if count > 1:
            half = math.hypot(half, T[min(count - 1, len(T)) - 1] * self.seeds.std(ddof=1) / math.sqrt(count))
        return self.mean - half, self.mean + half

    def __sub__(self, other: Estimate) -> Estimate:
        return Estimate(self.seeds - other.seeds, self.moved - other.moved)

    def __str__(self) -> str:
        low, high = self.bounds
        return f"{100 * self.mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]{'' if low <= 0 <= high else ' *'}"


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Average estimates of the same seeds and images."""
    return Estimate(*(np.mean([getattr(each, name) for each in estimates], 0) for name in ("seeds", "moved")))


def over_worlds(estimates: Sequence[Estimate]) -> Estimate:
    """Average estimates of as many seeds on different images."""
    moved = np.concatenate([each.moved for each in estimates]) / len(estimates)
    return Estimate(np.mean([each.seeds for each in estimates], 0), moved)


@dataclass(frozen=True)
class Line:
    """Rows of one split, one of each seed: of the base, or of a method with one setting, budget and blend."""

    base: Row  # names the image of each query
    rows: list[Row]

    @property
    def row(self) -> Row:
        """The row of the first seed."""
        return self.rows[0]

    @property
    def cell(self) -> Cell:
        return self.row.cell

    def estimate(self, metrics: Sequence[str]) -> Estimate:
        """Estimate the mean of some metrics. Images of the base's own domain follow those of the split."""
        own, kept = (len(self.base[f"{kind}i2t_ranks"] or ()) for kind in ("", "kept_"))
        found = []
        for name in metrics:
            values = np.array([row.right[name] for row in self.rows])  # (S, Q)
            images = self.base.images_of(name) + own * name.startswith("kept")
            weights = values.mean(0) - values.mean()
            moved = np.bincount(images, weights=weights, minlength=own + kept) / values.shape[1]
            found.append(Estimate(values.mean(1), moved))
        return mean_of(found)

    def gains(self, other: Line) -> dict[str, Estimate]:
        """Return the gains over another line of as many seeds: of each measure, and `score`, their mean."""
        measured = {name: each for name, each in MEASURES.items() if {*each} <= self.base.right.keys()}
        found = {name: self.estimate(each) - other.estimate(each) for name, each in measured.items()}
        return found | {"score": mean_of(list(found.values()))}


Lines = dict[str, Line]


def lines_of(rows: Iterable[Row], split: str) -> dict[str, Lines]:
    """Return the lines of a split, by data and name: the base, plain training, and the others as they come.

    The setting of a method is the one that was evaluated on the test split. Lines with fewer seeds than plain training
    are not finished, and left out.
    """
    by_cell = {row.cell: row for row in rows}
    bases = {cell.data: row for cell, row in by_cell.items() if cell.method == BASE and cell.split == split}
    found = {data: {BASE: Line(row, [row])} for data, row in bases.items()}
    for cell in sorted(by_cell, key=lambda cell: (cell.method != PLAIN, cell.seed)):
        there = by_cell.get(replace(cell, split=split))
        if cell.split == "test" and cell.method != BASE and cell.data in bases and there is not None:
            found[cell.data].setdefault(name_of(cell), Line(bases[cell.data], [])).rows.append(there)
    seeds = {data: len(lines[PLAIN].rows) if PLAIN in lines else 1 for data, lines in found.items()}
    return {
        data: {name: line for name, line in lines.items() if name == BASE or len(line.rows) >= seeds[data]}
        for data, lines in found.items()
    }


def name_of(cell: Cell) -> str:
    """Name a line: the method, and its budget or its blend."""
    budget = [] if cell.budget == "all" else [cell.budget]
    return ", ".join([cell.method, *budget, *([] if cell.blend == 1 else [f"blend {cell.blend:g}"])])
