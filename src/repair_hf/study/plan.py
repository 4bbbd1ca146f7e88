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

from repair_hf.study.methods.method import Method, RepairVariant
from repair_hf.study.results import BASE, Cell, Row, Settings
from repair_hf.study.setting import Setting, StudyData

PLAIN, TUNING_SEEDS = "vanilla", 2
SCORED = ("i2t_R@1", "t2i_R@1", "i2t_truth", "t2i_truth")  # both measures, in both directions


@dataclass(frozen=True)
class Arm:
    """A row of the tables; rows of results, one of each seed."""

    data: str
    method: str
    settings: Settings
    rows: Sequence[Row]
    same_steps: Sequence[Row]  # plain training of as many steps
    same_compute: Sequence[Row]  # plain training that encodes as much

    @property
    def ratio(self) -> float:
        """Steps of `same_compute` divided by those of `same_steps`."""
        return self.same_compute[0].cell.settings.epochs / self.same_steps[0].cell.settings.epochs


class Plan:
    """What a study needs.

    Args:
        setting: The study.
        wanted: Names of its methods; plain training is added.
        find: Returns the row of a finished cell, or None.

    Attributes:
        missing: After `arms`, the cells that are still to be run, in order.
        tried: After `arms`, the rows on the validation split, by the method and loss that they were tuned for.
        left_out: Methods without training data, with the reason; to be filled by who runs the cells.
    """

    def __init__(self, setting: Setting, wanted: Sequence[str], find: Callable[[Cell], Row | None]) -> None:
        self.setting, self.options, self.find = setting, setting.options, find
        self.wanted = list(dict.fromkeys([PLAIN, *wanted]))
        self.missing: dict[Cell, None] = {}
        self.tried: dict[tuple[str, str], list[Row]] = {}
        self.left_out: dict[tuple[str, str], str] = {}  # by dataset and method

    def arms(self) -> list[Arm]:
        """Return the arms that are finished, and collect the cells that are missing."""
        self.missing, self.tried = {}, {}
        found = []
        for data in self.setting.datasets.values():
            self.base(data)
            for name in self.wanted:
                method = self.setting.methods[name]
                if not self._is_left_out(data, method) and not self.setting.lacks(method, data):
                    arms = [self._arm(data, method, settings) for settings in self._all_settings(data, method)]
                    found += [arm for arm in arms if arm is not None]
        return found

    def base(self, data: StudyData) -> Row | None:
        rows = self._need([Cell(data.name, BASE, self.options.test_split)])
        return rows[0] if rows else None

    def _is_left_out(self, data: StudyData, method: Method) -> bool:
        """Return whether a method, or the one whose settings it would take, has no data."""
        needed = (method.name, method.tuned_as) if self.options.tune else (method.name,)
        for name in needed:
            if reason := self.left_out.get((data.name, name)):
                self.left_out.setdefault((data.name, method.name), reason)
                return True
        return False

    def _arm(self, data: StudyData, method: Method, settings: Settings) -> Arm | None:
        rows = self._seeds(data, method, settings)
        plain = self.setting.methods[PLAIN]
        steps = self._plain(data, settings.epochs)
        same_steps = steps and self._seeds(data, plain, steps)
        if not rows or not same_steps:
            return None
        ratio = compute_ratio(rows[0].values, same_steps[0].values)
        compute = self._plain(data, ratio * settings.epochs)
        same_compute = compute and self._seeds(data, plain, compute)
        return Arm(data.name, method.name, settings, rows, same_steps, same_compute) if same_compute else None

    def _seeds(self, data: StudyData, method: Method, settings: Settings) -> list[Row] | None:
        split = self.options.test_split
        return self._need([Cell(data.name, method.name, split, seed, settings) for seed in range(self.options.seeds)])

    def _need(self, cells: Sequence[Cell]) -> list[Row] | None:
        """Return the rows of some cells; None if any is missing, which is noted."""
        rows = [self.find(cell) for cell in cells]
        self.missing |= {cell: None for cell, row in zip(cells, rows, strict=True) if row is None}
        found = [row for row in rows if row is not None]
        return found if len(found) == len(cells) else None

    def _all_settings(self, data: StudyData, method: Method) -> Iterator[Settings]:
        """Yield the settings of a method's arms, as far as they are known."""
        for start in self._starts(data, method):
            for settings in self._chosen(data, method, start):
                for budget in (self.options.budgets or ["all"]) if method.makes_data else ["all"]:
                    yield replace(settings, budget=budget)

    def _starts(self, data: StudyData, method: Method) -> Iterator[Settings]:
        """Yield each fill and loss of a method, with the first learning rate, epochs and weight."""
        own, losses, fills = self.options, [method.loss if method.makes_data else ""], [method.fill]
        if method.objective is None and method.makes_data:
            losses = own.losses or losses
        if isinstance(method, RepairVariant) and len(method.directions) == 2 and method.own_fill is None:
            fills = own.fills or fills
        space = self._space(data)
        for fill, loss in itertools.product(fills, losses):
            weight = space["grid_weights"][0] if loss in ("grid", "both") else 0.0
            yield Settings(space["learning_rates"][0], space["epochs"][0], fill, loss, weight)

    def _space(self, data: StudyData) -> Mapping[str, Sequence[float]]:
        names = ("learning_rates", "epochs", "grid_weights")
        return {name: getattr(self.options, name) or getattr(data.options.size, name) for name in names}

    def _chosen(self, data: StudyData, method: Method, start: Settings) -> list[Settings]:
        """Return the settings of a method with a fill and a loss: the tuned ones, or each that was named."""
        if self.options.tune:
            found = self._tuned(data, method, start, self._space(data))
            return [found] if found else []
        names = {"learning_rate": "learning_rates", "epochs": "epochs", "grid_weight": "grid_weights"}
        values = [
            getattr(self.options, option)
            if getattr(self.options, option) and getattr(start, name)
            else [getattr(start, name)]
            for name, option in names.items()
        ]
        return [replace(start, **dict(zip(names, each, strict=True))) for each in itertools.product(*values)]

    def _plain(self, data: StudyData, epochs: float) -> Settings | None:
        """Return the settings of plain training of some length."""
        plain, space = self.setting.methods[PLAIN], self._space(data)
        if not self.options.tune:
            return Settings(space["learning_rates"][0], epochs)
        start = Settings(space["learning_rates"][0], epochs)
        return self._tuned(data, plain, start, {**space, "epochs": [epochs]})

    def _tuned(
        self, data: StudyData, method: Method, start: Settings, space: Mapping[str, Sequence[float]]
    ) -> Settings | None:
        """Choose settings on the validation split; None if cells are missing."""
        as_method = self.setting.methods[method.tuned_as]
        first = start
        if as_method is not method:
            first = replace(start, fill=as_method.fill, loss=as_method.loss, grid_weight=0.0)
            if as_method.loss in ("grid", "both"):
                first = replace(first, grid_weight=space["grid_weights"][0])
        lengths = itertools.product(space["learning_rates"], space["epochs"])
        points = [replace(first, learning_rate=rate, epochs=epochs) for rate, epochs in lengths]
        best = self._best(data, as_method, points)
        if best is not None and best.grid_weight:
            best = self._best(data, as_method, [replace(best, grid_weight=weight) for weight in space["grid_weights"]])
        if best is None:
            return None
        weight = 0.0 if not start.grid_weight else best.grid_weight or start.grid_weight
        return replace(best, fill=start.fill, loss=start.loss, grid_weight=weight)

    def _best(self, data: StudyData, method: Method, points: Sequence[Settings]) -> Settings | None:
        if len(points) == 1:
            return points[0]
        split, found = self.options.validation_split, {}
        for point in points:
            found[point] = self._need([Cell(data.name, method.name, split, n, point) for n in range(TUNING_SEEDS)])
        if None in found.values():
            return None
        key = data.name, f"{method.name} {points[0].fill} {points[0].loss}"
        for rows in found.values():
            self.tried.setdefault(key, []).extend(row for row in rows or [] if row not in self.tried.get(key, []))
        return max(points, key=lambda point: statistics.fmean(score(row) for row in found[point] or []))


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
