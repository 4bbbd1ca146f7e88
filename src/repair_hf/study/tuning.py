"""Hyperparameters of each method, chosen on the validation split from one small grid.

In:  methods, the values to try, a way to train and measure one.
Out: `Choice`s: what was chosen for each, and all that was tried.

Every method is given the same values to choose from, with one seed: first the learning rate, with the first of all other values; then, with the
rate that won, the passes over the data; then lambda, for those alone that have grids. What wins has the highest R@1, mean of both directions;
of equals the one tried first. An ablation takes what RePair has chosen, since it changes one thing and not these too; another retriever has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from repair_hf.study.cells import Measured
from repair_hf.study.methods.method import Method, Repair
from repair_hf.study.setting import Knobs


@dataclass(frozen=True)
class Grid:
    """The values that are tried; where nothing is tried, the first of each is taken.

    Args:
        learning_rates: Of every method.
        epochs: Of every method.
        grid_weights: Of RePair and its variants.
    """

    learning_rates: Sequence[float]
    epochs: Sequence[float]
    grid_weights: Sequence[float]

    def start(self, method: Method) -> Knobs:
        """The first of each value."""
        return Knobs(self.learning_rates[0], self.epochs[0], self.grid_weights[0] if has_grids(method) else 0.0)

    def turns(self, method: Method) -> list[tuple[str, Sequence[float]]]:
        """What is tried for a method, one thing after the other: the name in `Knobs`, and its values."""
        turns = [("learning_rate", self.learning_rates), ("epochs", self.epochs)]
        if has_grids(method):
            turns.append(("grid_weight", self.grid_weights))
        return [(name, values) for name, values in turns if len(values) > 1]


@dataclass(frozen=True)
class Choice:
    """What was chosen for a method.

    Args:
        knobs: Its hyperparameters.
        tried: All that was measured on the validation split; nothing where nothing was tried.
    """

    knobs: Knobs
    tried: tuple[Measured, ...] = ()


def choose(
    methods: Mapping[str, Method],
    name: str,
    grid: Grid,
    measure: Callable[[Method, Sequence[Knobs]], Sequence[Measured]] | None,
) -> Choice:
    """Choose for a method; what takes its hyperparameters from another is handed that one's.

    Args:
        methods: All methods there are, by name.
        name: The method.
        grid: The values.
        measure: Trains a method with each of some hyperparameters and measures it on the validation split, or remembers that; None
            takes the first of each value.
    """
    choice = _tried(methods[methods[name].tuned_as], grid, measure)
    if has_grids(methods[name]):
        return choice
    return replace(choice, knobs=replace(choice.knobs, grid_weight=0.0))  # it decides nothing there


def _tried(
    method: Method, grid: Grid, measure: Callable[[Method, Sequence[Knobs]], Sequence[Measured]] | None
) -> Choice:
    best = grid.start(method)
    tried: dict[Knobs, Measured] = {}
    for name, values in grid.turns(method) if measure else []:
        points = [replace(best, **{name: value}) for value in values]
        new = [knobs for knobs in points if knobs not in tried]
        tried |= zip(new, measure(method, new), strict=True)
        best = max(points, key=lambda knobs: mean_r1(tried[knobs]))
    return Choice(best, tuple(tried.values()))


def mean_r1(measured: Measured) -> float:
    """R@1, mean of both directions."""
    return (measured.metrics["i2t_R@1"] + measured.metrics["t2i_R@1"]) / 2


def has_grids(method: Method) -> bool:
    """Whether lambda decides anything."""
    return isinstance(method, Repair) and method.records and method.train.get("negatives") != "batch"
