"""Choose the hyperparameters of each method on the validation split.

All methods try the same values with one seed: first the learning rate (with the first of all other values), then the
number of epochs, then lambda for methods with grids. The highest R@1 (mean of both directions) wins; of equals, the
first one tried. Ablations use the hyperparameters of RePair, because they change one choice only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from repair_hf.study.cells import Measured
from repair_hf.study.methods.method import Method, RepairVariant
from repair_hf.study.setting import Knobs

Evaluate = Callable[[Method, Sequence[Knobs]], Sequence[Measured]]


@dataclass(frozen=True)
class SearchSpace:
    """The values to try. Without tuning, the first of each is used."""

    learning_rates: Sequence[float]  # for every method
    epochs: Sequence[float]  # for every method
    grid_weights: Sequence[float]  # for RePair and its variants

    def start(self, method: Method) -> Knobs:
        return Knobs(self.learning_rates[0], self.epochs[0], self.grid_weights[0] if has_grids(method) else 0.0)

    def rounds(self, method: Method) -> list[tuple[str, Sequence[float]]]:
        """Return the hyperparameters to try one after the other, each with its values."""
        rounds = [("learning_rate", self.learning_rates), ("epochs", self.epochs)]
        if has_grids(method):
            rounds.append(("grid_weight", self.grid_weights))
        return [(name, values) for name, values in rounds if len(values) > 1]


@dataclass(frozen=True)
class Tuned:
    """The hyperparameters of a method."""

    knobs: Knobs  # the chosen ones
    tried: tuple[Measured, ...] = ()  # everything that was evaluated on the validation split; empty without tuning


def tune(methods: Mapping[str, Method], name: str, space: SearchSpace, evaluate: Evaluate | None) -> Tuned:
    """Choose the hyperparameters of a method, or those of the method that it is tuned as.

    `evaluate` trains a method and evaluates it on the validation split; without it, the first of each value is taken.
    """
    method = methods[methods[name].tuned_as]
    best = space.start(method)
    tried: dict[Knobs, Measured] = {}
    if evaluate is not None:
        for field, values in space.rounds(method):
            points = [replace(best, **{field: value}) for value in values]
            new = [knobs for knobs in points if knobs not in tried]
            tried |= zip(new, evaluate(method, new), strict=True)
            best = max(points, key=lambda knobs: mean_r1(tried[knobs]))
    if not has_grids(methods[name]):
        best = replace(best, grid_weight=0.0)  # unused there
    return Tuned(best, tuple(tried.values()))


def mean_r1(measured: Measured) -> float:
    return (measured.metrics["i2t_R@1"] + measured.metrics["t2i_R@1"]) / 2


def has_grids(method: Method) -> bool:
    return isinstance(method, RepairVariant) and method.records and method.train.get("negatives") != "batch"
