"""The lines of the tables, and their differences with 95% intervals that cover images and seeds.

An estimate keeps its value with each seed, and how far each image moves it, so estimates of the same seeds and images
are subtracted pair by pair. The interval covers other images: queries of one image count together (cluster-robust
standard error). With several seeds it covers other seeds, too: by a t-distribution, whose half width is added in
quadrature.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from repair_hf.study.methods import METHODS, PLAIN
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
        own, kept = (len(self.base.right.get(f"{kind}i2t", ())) for kind in ("", "kept_"))
        found = []
        for name in metrics:
            values = np.array([row.right[name] for row in self.rows])  # (S, Q)
            images = self.base.images_of(name) + own * name.startswith("kept")
            weights = values.mean(0) - values.mean()
            moved = np.bincount(images, weights=weights, minlength=own + kept) / values.shape[1]
            found.append(Estimate(values.mean(1), moved))
        return mean_of(found)

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """The estimates of `MEASURES`, as far as they were measured."""
        return {name: self.estimate(each) for name, each in MEASURES.items() if {*each} <= self.base.right.keys()}

    def gains(self, other: Line) -> dict[str, Estimate]:
        """Return the gains over another line of as many seeds: of each measure, and `score`, their mean."""
        gains = {name: estimate - other.estimates[name] for name, estimate in self.estimates.items()}
        return gains | {"score": mean_of(list(gains.values()))}


Lines = dict[str, Line]


def lines_of(rows: Iterable[Row], split: str) -> dict[str, Lines]:
    """Return the lines of a split, by data and name: the base, and the others in the order of `METHODS`.

    The setting of a method is the one that was evaluated on the test split; of several, as where a grid was widened,
    the best on validation with seed 0. Of an unfinished study each line has the seeds of plain training, or is left
    out.
    """
    by_cell = {row.cell: row for row in rows}
    chosen = _settings(by_cell)
    bases = {cell.data: row for cell, row in by_cell.items() if cell.method == BASE and cell.split == split}
    found = {data: {BASE: Line(row, [row])} for data, row in bases.items()}
    methods = dict.fromkeys([*METHODS, *(cell.method for cell in by_cell)])  # a row may be of a method that has left
    place = {method: number for number, method in enumerate(methods)}
    for cell in sorted(by_cell, key=lambda cell: (place[cell.method], cell.budget != "all", -cell.blend, cell.seed)):
        there = by_cell.get(replace(cell, split=split))
        is_chosen = chosen.get((cell.data, cell.method)) == (cell.learning_rate, cell.epochs)
        if cell.split == "test" and is_chosen and cell.data in bases and there is not None:
            found[cell.data].setdefault(name_of(cell), Line(bases[cell.data], [])).rows.append(there)
    return {data: _finished(lines) if PLAIN in lines else lines for data, lines in found.items()}


def _finished(lines: Lines) -> Lines:
    """Return the base and the lines that have all seeds of plain training, without any others."""
    seeds = [row.cell.seed for row in lines[PLAIN].rows]
    found = {BASE: lines[BASE]}
    for name, line in lines.items():
        rows = [row for row in line.rows if row.cell.seed in seeds]
        if name != BASE and len(rows) == len(seeds):
            found[name] = Line(line.base, rows)
    return found


def _settings(rows: Mapping[Cell, Row]) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the learning rate and the epochs of each data and method, see `lines_of`."""
    tested: dict[tuple[str, str], set[tuple[float, float]]] = {}
    for cell in rows:
        if cell.split == "test" and cell.method != BASE:
            tested.setdefault((cell.data, cell.method), set()).add((cell.learning_rate, cell.epochs))

    def recall(data: str, method: str, setting: tuple[float, float]) -> float:
        row = rows.get(Cell(data, method, "validation", 0, *setting))
        return -1.0 if row is None else sum(row.right[way].mean() for way in MEASURES["R@1"])

    return {
        (data, method): max(sorted(settings), key=lambda setting: recall(data, method, setting))
        for (data, method), settings in tested.items()
    }


def name_of(cell: Cell) -> str:
    """Name a line: the method, and its budget or its blend."""
    budget = [] if cell.budget == "all" else [cell.budget]
    return ", ".join([cell.method, *budget, *([] if cell.blend == 1 else [f"blend {cell.blend:g}"])])
