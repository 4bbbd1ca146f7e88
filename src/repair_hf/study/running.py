"""Run a study: which cells there are, in which order they run, and what they are compared with.

The way of the data: `setting` holds what all cells share; `tuning` chooses each method's hyperparameters; `products`
makes what a method trains on, by `methods/` and `repair_records`; `cells` trains and evaluates one method with one
seed; `report` writes the tables (`tables`, `cost_tables`) and figures (`plots`).

Each method is compared with plain training (`vanilla`) of the same seed twice: at equal steps and at equal compute,
that is, with the number of steps that encodes as many images or captions, whichever is more. This number is rounded
up, so that methods share plain runs. With tuning, plain training of each length has a learning rate of its own: one
that was chosen for fewer steps would handicap longer training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from repair_hf.records.dataset import NoRecords
from repair_hf.study.cells import BASE, Cell, Measured, forget_weights, measured, run_cell
from repair_hf.study.methods.method import Method
from repair_hf.study.products import Products
from repair_hf.study.setting import Knobs, Setting
from repair_hf.study.spending import total_cost
from repair_hf.study.tuning import TUNING_SEEDS, SearchSpace, Tuned, tune

PLAIN, OTHER_PLAIN = "vanilla", "other-backbone-vanilla"

T = TypeVar("T")
Cells = tuple[Measured, ...]  # one of each seed


@dataclass(frozen=True)
class MethodResult:
    """A method's cells, and what they are compared with."""

    cells: Cells  # its own
    same_steps: Cells  # plain training of as many steps
    same_compute: Cells  # plain training that encodes as much
    ratio: float  # steps of `same_compute` divided by those of `same_steps`

    @property
    def cost(self) -> dict[str, Any]:
        """What its data cost, see `total_cost`: `made` counts all samples, `samples` those that were encoded."""
        encoded = self.cells[0].training.get("samples_encoded")
        cost = total_cost(self.cells[0].made.values())
        return cost | {"made": cost["samples"]} | ({} if encoded is None else {"samples": sum(encoded.values())})


@dataclass(frozen=True)
class Results:
    """All results so far."""

    base: Measured  # the untrained retriever
    rows: Mapping[str, MethodResult]  # the result of each method
    # method -> share of its samples, or a number of them above 1 -> cells; empty without such points
    sweep: Mapping[str, Mapping[float, Cells]]
    tuned: Mapping[str, Tuned]  # each method's hyperparameters
    left_out: Mapping[str, str]  # methods without training data, and the reason
    # hyperparameters of plain training of other lengths, by its name and epochs
    lengths: Mapping[tuple[str, float], Tuned]


class Study:
    """Runs the cells of a study.

    `methods` are all that exist, `wanted` those of the study; plain training is added. Without `tune`, the first of
    each value in `space` is used. `points` are shares of each method's samples, or numbers of them above 1. `tell` is
    called with a line for each finished cell.
    """

    def __init__(
        self,
        setting: Setting,
        methods: Mapping[str, Method],
        wanted: Sequence[str],
        space: SearchSpace,
        *,
        tune: bool,
        points: Sequence[float] = (1.0,),
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.setting, self.methods, self.space, self.tune, self.tell = setting, methods, space, tune, tell
        plain = [OTHER_PLAIN] if any(methods[name].other_model for name in wanted) else []
        self.wanted = list(dict.fromkeys([PLAIN, *plain, *wanted]))
        self.points = sorted({*points} - {1.0}) + [1.0]
        self.products = Products(setting)
        self._run_all = setting.sharing.run_all
        self._measured: dict[Cell, Measured] = {}
        self._lengths: dict[tuple[str, float], Tuned] = {}
        self._left_out: dict[str, str] = {}
        self._n_seeds = TUNING_SEEDS

    def run(self, seeds: int) -> Iterator[Results]:
        """Run all cells, seed by seed, and yield the results of all seeds so far after each."""
        self._n_seeds = seeds
        if self.setting.llm.batch and not self.setting.kept.only:
            self._submit()
        tuned = self._with_plain(self._each({name: partial(self._tune, name, self.space) for name in self.wanted}))
        for count in range(1, seeds + 1):
            yield self._results(tuned, range(count))

    def _submit(self) -> None:
        """Make the data of all methods before the first training, so that all batches are with the provider at once.

        RePair comes first: its variants take over its answers. Later rounds need a trained retriever.
        """
        names = [*self.wanted, *(self.methods[name].tuned_as for name in self.wanted if self.tune)]
        chosen = [method for name in dict.fromkeys(names) if getattr(method := self.methods[name], "rounds", 1) == 1]
        chosen.sort(key=lambda method: getattr(method, "product", "") != "repair")
        self._each({each.name: partial(self.products.of, each, self.space.start(each)) for each in chosen})

    def _each(self, parts: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Make the parts of methods, without the methods that turn out to have no training data."""
        left = {
            name: partial(self._unless_empty, name, part) for name, part in parts.items() if name not in self._left_out
        }
        return {name: part for name, part in self._run_all(left).items() if name not in self._left_out}

    def _unless_empty(self, name: str, part: Callable[[], Any]) -> Any:
        try:
            return part()
        except NoRecords as error:
            self._left_out[name] = str(error)
            self.tell(f"left out {name}: {error}")
            return None

    def _with_plain(self, found: Mapping[str, T]) -> dict[str, T]:
        """Return the parts of methods whose plain training is among them; the others are left out.

        Raises:
            NoRecords: If there is no plain training at all.
        """
        if PLAIN not in found:
            raise NoRecords(f"Every table needs plain training, but {self._left_out[PLAIN]}.")
        self._left_out |= {
            name: self._left_out[plain] for name in found if (plain := self._plain_name(name)) not in found
        }
        return {name: part for name, part in found.items() if name not in self._left_out}

    def _plain_name(self, name: str) -> str:
        return OTHER_PLAIN if self.methods[name].other_model else PLAIN

    def _results(self, tuned: Mapping[str, Tuned], seeds: Sequence[int]) -> Results:
        base = self._measure(Cell(BASE, self.setting.split), None)
        # methods whose data are missing come first: one process makes data while the others train
        names = sorted(tuned, key=lambda name: not self.products.lacks(self.methods[name]))
        found = self._with_plain(self._each({name: partial(self._compare, name, tuned, seeds) for name in names}))
        rows = {name: found[name] for name in tuned if name in found}
        swept = [name for name, row in rows.items() if len(self.points) > 1 and row.cost["made"]]
        sweep = self._each({name: partial(self._sweep, rows[name], seeds) for name in swept})
        rows = {name: row for name, row in rows.items() if name not in self._left_out}
        return Results(base, rows, sweep, tuned, dict(self._left_out), dict(self._lengths))

    def _sweep(self, row: MethodResult, seeds: Sequence[int]) -> dict[float, Cells]:
        """Train on the share, or on the number of samples, that each point names; too large a number is left out."""
        cell, made = row.cells[0].cell, row.cost["made"]
        shares = {point: point / made if point > 1 else point for point in self.points}
        return {
            point: self._seeds(cell.method, row.cells[0].knobs, seeds, share)
            for point, share in shares.items()
            if share < 1 or point == 1
        }

    def _compare(self, name: str, tuned: Mapping[str, Tuned], seeds: Sequence[int]) -> MethodResult:
        """Train a method, and plain training at equal steps and at equal compute."""
        knobs, plain_name = tuned[name].knobs, self._plain_name(name)
        plain = self._plain(tuned[plain_name], plain_name, knobs.epochs)
        both = {
            "own": partial(self._seeds, name, knobs, seeds),
            "plain": partial(self._seeds, plain_name, plain, seeds),
        }
        cells, same_steps = self._run_all(both).values()
        ratio = compute_ratio(cells[0].training, same_steps[0].training)
        as_long = self._plain(tuned[plain_name], plain_name, ratio * knobs.epochs)
        same_compute = self._seeds(plain_name, as_long, seeds)
        return MethodResult(cells, same_steps, same_compute, ratio)

    def _plain(self, own: Tuned, name: str, epochs: float) -> Knobs:
        """Return the hyperparameters of plain training of some length; another length than its own is tuned anew."""
        if epochs == own.knobs.epochs:
            return own.knobs
        if (name, epochs) not in self._lengths:
            self._lengths[name, epochs] = self._tune(name, replace(self.space, epochs=[epochs]))
        return self._lengths[name, epochs].knobs

    def _tune(self, name: str, space: SearchSpace) -> Tuned:
        tuned = tune(self.methods, name, space, self._on_validation if self.tune else None)
        for one in tuned.tried:
            if one.cell.method == name and one.cell.knobs != tuned.knobs:
                forget_weights(one.folder)
        return tuned

    def _seeds(self, name: str, knobs: Knobs, seeds: Sequence[int], share: float = 1.0) -> Cells:
        cells = [Cell(name, self.setting.split, seed, knobs, share) for seed in seeds]
        parts = {cell.name: partial(self._measure, cell, self.methods[name]) for cell in cells}
        return tuple(self._run_all(parts).values())

    def _on_validation(self, method: Method, points: Sequence[Knobs]) -> list[Cells]:
        seeds, split = range(TUNING_SEEDS), self.setting.validation_split
        cells = [Cell(method.name, split, seed, knobs) for knobs in points for seed in seeds]
        is_reported = method.name in self.wanted  # then the winner is evaluated on the other split, too
        kept = {cell: is_reported and cell.seed < self._n_seeds for cell in cells}
        parts = {cell.name: partial(self._measure, cell, method, keep_weights=kept[cell]) for cell in cells}
        found = tuple(self._run_all(parts).values())
        return [found[at : at + TUNING_SEEDS] for at in range(0, len(found), TUNING_SEEDS)]

    def _measure(self, cell: Cell, method: Method | None, *, keep_weights: bool = False) -> Measured:
        if cell not in self._measured:
            if self.setting.kept.only:
                found = self._kept(cell)
            else:
                found = run_cell(cell, method, self.setting, self.products, keep_weights=keep_weights)
            self._measured[cell] = found
            seconds = f"   {found.training['seconds']:,.0f} s" if found.training else ""
            r1 = "   ".join(f"{side.upper()} {100 * found.metrics[f'{side}_R@1']:.1f}" for side in ("i2t", "t2i"))
            self.tell(f"cell    {cell.name}   R@1 {r1}{seconds}")
        return self._measured[cell]

    def _kept(self, cell: Cell) -> Measured:
        folder = self.setting.output / "kept" / cell.name
        if (summary := self.setting.kept.find(cell.name, folder)) is None:
            raise NoRecords(f"{cell.name} has not been trained yet")
        return measured(cell, folder, summary)


def compute_ratio(training: Mapping[str, float], plain: Mapping[str, float]) -> float:
    """Return how many plain steps encode as much as one step of another training, rounded up.

    Example:
        >>> plain = {"images_per_step": 128, "texts_per_step": 128}
        >>> compute_ratio({"images_per_step": 256, "texts_per_step": 150}, plain)
        2.0
    """
    most = max(training[name] / plain[name] for name in ("images_per_step", "texts_per_step"))
    return max(float(math.ceil(most - 0.02)), 1.0)  # a batch may hold a caption twice
