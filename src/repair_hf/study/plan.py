"""Which cells a study needs, given those that are finished: its arms, what they are compared with, and the tuning.

An arm is a row of the tables: a method with settings, on a dataset. Each is compared with plain training (`vanilla`)
of the same seed twice: at equal steps, and at equal compute, that is, with the number of steps that encodes as many
images or captions, whichever is more. That number is rounded up, so that arms share plain runs.

With `tune`, each method and loss tries each learning rate with each number of epochs and the first grid weight, then
the other weights, with two seeds on the validation split. The highest score wins, of equals the first one tried: the
mean of R@1 in both directions and, if there are near misses, of the accuracies on them. Ablations use the settings
of `repair` or `repair-paper`. Plain training of each length is tuned, too: a learning rate that was chosen for fewer
steps would handicap longer training.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from repair_hf.study.differences import Gain, differences
from repair_hf.study.methods.method import Method
from repair_hf.study.results import BASE, SCORED, Cell, Row
from repair_hf.study.setting import Setting

Space = dict[str, Sequence[float]]  # setting of a cell -> the values that are compared, or tried by `tune`
PLAIN, TUNING_SEEDS = "vanilla", 2


@dataclass(frozen=True)
class Arm:
    """A row of the tables: rows of results, one of each seed, and what they are compared with, if anything."""

    rows: Sequence[Row]
    base: Row  # the untrained retriever on the same data
    same_steps: Sequence[Row] = ()  # plain training of as many steps
    same_compute: Sequence[Row] = ()  # plain training that encodes as much

    @property
    def cell(self) -> Cell:
        """The cell of the first seed."""
        return self.rows[0].cell

    @property
    def ratio(self) -> float:
        """Steps of `same_compute` divided by those of `same_steps`."""
        return self.same_compute[0].cell.epochs / self.same_steps[0].cell.epochs

    @cached_property
    def gains(self) -> dict[str, dict[str, Gain]]:
        """The gains over plain training at equal `steps` and `compute`, by metric; none for plain training itself."""
        others = {"steps": self.same_steps, "compute": self.same_compute}
        is_compared = self.same_steps and self.same_steps[0] is not self.rows[0]
        return {at: differences(self.rows, rows, self.base) if is_compared else {} for at, rows in others.items()}


class Plan:
    """What a study on one dataset needs.

    Args:
        setting: The study.
        wanted: Names of its methods; plain training is added.
        find: Returns the row of a finished cell, or None.

    Attributes:
        missing: After `arms`, the cells that are still to be run, in order.
        tried: After `arms`, the rows on the validation split.
        left_out: Methods without training data, with the reason; to be filled by who runs the cells.
    """

    def __init__(self, setting: Setting, wanted: Sequence[str], find: Callable[[Cell], Row | None]) -> None:
        self.setting, self.options, self.find = setting, setting.options, find
        self.wanted = list(dict.fromkeys([PLAIN, *wanted]))
        self.missing: dict[Cell, None] = {}
        self.tried: dict[Cell, Row] = {}
        self.left_out: dict[str, str] = {}

    def arms(self) -> list[Arm]:
        """Return the arms that are finished, and collect the cells that are missing."""
        self.missing, self.tried = {}, {}
        found: list[Arm | None] = []
        base = self.base()
        for method in map(self.setting.methods.__getitem__, self.wanted):
            if not self._is_left_out(method):
                found += [self._arm(cell, base) for cell in self._cells(method)]
        return [arm for arm in found if arm is not None]

    def base(self) -> Row | None:
        rows = self._need([Cell(self.setting.name, BASE, self.options.test_split)])
        return rows[0] if rows else None

    def _is_left_out(self, method: Method) -> bool:
        """Return whether a method, or the one whose settings it would take, has no data."""
        for name in (method.name, method.tuned_as if self.options.tune else ""):
            if name in self.left_out:
                self.left_out.setdefault(method.name, self.left_out[name])
                return True
        return False

    def _arm(self, cell: Cell, base: Row | None) -> Arm | None:
        rows, same_steps = self._seeds(cell), self._plain(cell, 1.0)
        if not rows or not same_steps:
            return None
        same_compute = self._plain(cell, compute_ratio(rows[0].values, same_steps[0].values))
        return Arm(rows, base, same_steps, same_compute) if same_compute and base else None

    def _plain(self, cell: Cell, ratio: float) -> list[Row] | None:
        """Return plain training that is `ratio` times as long as a cell."""
        start, epochs = Cell(cell.data, PLAIN, cell.split), [ratio * cell.epochs]
        plain = self._tuned(start, epochs) if self.options.tune else _each(start, **self._space(start, epochs))[0]
        return self._seeds(plain) if plain else None

    def _seeds(self, cell: Cell) -> list[Row] | None:
        return self._need(_each(cell, seed=range(self.options.seeds)))

    def _need(self, cells: Sequence[Cell]) -> list[Row] | None:
        """Return the rows of some cells; None if any is missing, which is noted."""
        rows = {cell: self.find(cell) for cell in cells}
        self.missing |= {cell: None for cell, row in rows.items() if row is None}
        found = [row for row in rows.values() if row is not None]
        return found if len(found) == len(cells) else None

    def _space(self, cell: Cell, epochs: Sequence[float] = ()) -> Space:
        """The values that were named; by default those of the data's size, of which tuning tries all."""
        named, size, count = self.options, self.setting.size, None if self.options.tune else 1
        weights = named.grid_weights or size.grid_weights[:count]
        return {
            "learning_rate": named.learning_rates or size.learning_rates[:count],
            "epochs": epochs or named.epochs or size.epochs[:count],
            "grid_weight": weights if cell.loss in ("grid", "both") else [0.0],
        }

    def _cells(self, method: Method) -> Iterator[Cell]:
        """Yield the first seed's cell of each arm of a method, as far as its settings are known."""
        options = self.options
        losses, fills = [method.loss if method.parts else ""], [method.fill]
        if method.objective is None and method.parts:
            losses = options.losses or losses
        if method.records and len(method.records.directions) == 2 and method.own_fill is None:
            fills = options.fills or fills
        for fill, loss in itertools.product(fills, losses):
            start = Cell(self.setting.name, method.name, options.test_split, fill=fill, loss=loss)
            found = [self._tuned(start)] if options.tune else _each(start, **self._space(start))
            for cell in filter(None, found):
                yield from _each(cell, budget=options.budgets if options.budgets and method.parts else ["all"])

    def _tuned(self, start: Cell, epochs: Sequence[float] = ()) -> Cell | None:
        """Choose the settings of a cell on the validation split; None if cells are missing."""
        method = self.setting.methods[self.setting.methods[start.method].tuned_as or start.method]
        first = replace(start, method=method.name, split=self.options.validation_split)
        if method.name != start.method:
            first = replace(first, fill=method.fill, loss=method.loss)
        space = self._space(first, epochs)
        best = self._best(_each(first, **space | {"grid_weight": space["grid_weight"][:1]}))
        if best is not None:
            best = self._best(_each(best, grid_weight=space["grid_weight"]))
        if best is None:
            return None
        weights = self._space(start)["grid_weight"]
        weight = best.grid_weight if best.grid_weight in weights else weights[0]
        return replace(start, learning_rate=best.learning_rate, epochs=best.epochs, grid_weight=weight)

    def _best(self, cells: Sequence[Cell]) -> Cell | None:
        """Return the cell with the highest score, of equals the first; None if cells are missing."""
        if len(cells) == 1:
            return cells[0]
        found = {cell: self._need(_each(cell, seed=range(TUNING_SEEDS))) for cell in cells}
        self.tried |= {row.cell: row for rows in found.values() for row in rows or ()}
        scores = {cell: statistics.fmean(map(score, rows)) for cell, rows in found.items() if rows}
        return max(scores, key=scores.__getitem__) if len(scores) == len(cells) else None


def _each(cell: Cell, **values: Sequence[Any]) -> list[Cell]:
    """Return a cell with each combination of some values."""
    chosen = (dict[str, Any](zip(values, each, strict=True)) for each in itertools.product(*values.values()))
    return [replace(cell, **each) for each in chosen]


def score(row: Row) -> float:
    """Return the mean of both measures in both directions, as far as there are near misses."""
    return statistics.fmean(row.metrics[name] for name in SCORED if name in row.metrics)


def compute_ratio(training: Mapping[str, float], plain: Mapping[str, float]) -> float:
    """Return how many plain steps encode as much as one step of another training, rounded up.

    Example:
        >>> plain = {"images_per_step": 128, "texts_per_step": 128}
        >>> compute_ratio({"images_per_step": 256, "texts_per_step": 150}, plain)
        2.0
    """
    most = max(training[name] / plain[name] for name in ("images_per_step", "texts_per_step"))
    return max(float(math.ceil(most - 0.02)), 1.0)  # a batch may hold a caption twice
