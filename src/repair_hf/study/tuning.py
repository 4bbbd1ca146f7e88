"""Choose the hyperparameters of each method on the validation split.

All methods try the same values with two seeds: each learning rate with each number of epochs (and the first lambda),
then lambda for methods with the grid loss. The highest R@1 (mean of both directions and seeds) wins; of equals, the
first one tried. An ablation uses the hyperparameters of `repair` or `repair-paper`: it changes one choice only.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from repair_hf.study.cells import Measured
from repair_hf.study.methods.method import Method, RepairVariant
from repair_hf.study.setting import Knobs

Evaluate = Callable[[Method, Sequence[Knobs]], Sequence[Sequence[Measured]]]
TUNING_SEEDS = 2


@dataclass(frozen=True)
class SearchSpace:
    """The values to try. Without tuning, the first of each is used."""

    learning_rates: Sequence[float]  # for every method
    epochs: Sequence[float]  # for every method
    grid_weights: Sequence[float]  # for methods with the grid loss

    def start(self, method: Method) -> Knobs:
        return Knobs(self.learning_rates[0], self.epochs[0], self.grid_weights[0] if has_grid_loss(method) else 0.0)

    def rates_and_lengths(self, method: Method) -> list[Knobs]:
        """Return each learning rate with each number of epochs."""
        values = itertools.product(self.learning_rates, self.epochs)
        return [replace(self.start(method), learning_rate=rate, epochs=epochs) for rate, epochs in values]

    def weights(self, method: Method, best: Knobs) -> list[Knobs]:
        """Return the best hyperparameters so far with each lambda, if the method has the grid loss."""
        if not has_grid_loss(method):
            return [best]
        return [replace(best, grid_weight=weight) for weight in self.grid_weights]


@dataclass(frozen=True)
class Tuned:
    """The hyperparameters of a method."""

    knobs: Knobs  # the chosen ones
    tried: tuple[Measured, ...] = ()  # everything that was evaluated on the validation split; empty without tuning


def tune(methods: Mapping[str, Method], name: str, space: SearchSpace, evaluate: Evaluate | None) -> Tuned:
    """Choose the hyperparameters of a method, or those of the method that it is tuned as.

    `evaluate` trains a method with some hyperparameters, and returns its cells on the validation split, those of all
    seeds for each; without it, the first of each value is taken.
    """
    method = methods[methods[name].tuned_as]
    tried: dict[Knobs, Sequence[Measured]] = {}

    def best_of(points: Sequence[Knobs]) -> Knobs:
        if evaluate is None or len(points) == 1:
            return points[0]
        new = [knobs for knobs in points if knobs not in tried]
        tried.update(zip(new, evaluate(method, new), strict=True))
        return max(points, key=lambda knobs: mean_r1(tried[knobs]))

    best = best_of(space.weights(method, best_of(space.rates_and_lengths(method))))
    if not has_grid_loss(methods[name]):
        best = replace(best, grid_weight=0.0)  # unused there
    return Tuned(best, tuple(cell for cells in tried.values() for cell in cells))


def mean_r1(cells: Sequence[Measured]) -> float:
    return statistics.fmean(cell.metrics[f"{side}_R@1"] for cell in cells for side in ("i2t", "t2i"))


def has_grid_loss(method: Method) -> bool:
    """Return whether a method trains with L_grid, with a weight that is tuned."""
    return isinstance(method, RepairVariant) and method.records and method.train["loss"] in ("grid", "both")
