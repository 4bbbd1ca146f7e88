"""The study: which cells there are, in which order they are run, and what they are compared with.

In:  a `Setting`, methods, seeds, shares, the grid of hyperparameters.
Out: `Results`, after each seed anew, so that a study that is cut off has a whole table of the seeds before.

A method is compared with plain training (`vanilla`) of the same seed twice: with as many steps, and with as many as encode as many images or
captions, whichever is more. How many that is, the method's own training tells; it is rounded up to 1.5 times, 2 times and so on, so that methods share these runs.
Where hyperparameters are chosen, plain training of each length has a learning rate of its own choice: one that was chosen for fewer steps would
make longer training look worse than it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from repair_hf.records.dataset import NoRecords
from repair_hf.study.cells import BASE, Cell, Measured, forget_weights, run_cell
from repair_hf.study.methods.method import Method, Repair
from repair_hf.study.products import Made, Products
from repair_hf.study.setting import Knobs, Setting
from repair_hf.study.tuning import Choice, Grid, choose

PLAIN, OTHER_PLAIN = "vanilla", "other-backbone-vanilla"
LONGER = 3  # times the plain steps, to see what plain training has left to gain
LONGEST = f"{PLAIN}, {LONGER} times as long"

Part = TypeVar("Part")


@dataclass(frozen=True)
class Row:
    """A method's cells, one of each seed, and what they are compared with.

    Args:
        cells: Its own.
        same_steps: Plain training of as many steps.
        same_compute: Plain training that encodes as much.
        ratio: Steps of `same_compute` to those of `same_steps`.
        made: What it trains on, by part.
    """

    cells: tuple[Measured, ...]
    same_steps: tuple[Measured, ...]
    same_compute: tuple[Measured, ...]
    ratio: float
    made: Mapping[str, Made]


@dataclass(frozen=True)
class Results:
    """What has been measured so far.

    Args:
        base: The retriever as it came.
        longer: Plain training of `LONGER` times the steps, one of each seed.
        rows: Each method's.
        sweep: Method -> share -> its cells, where there are shares.
        choices: Each method's hyperparameters.
        left_out: Methods that have nothing to train on, and why.
        lengths: Those of plain training of other lengths, by its name and its passes over the captions.
    """

    base: Measured
    longer: tuple[Measured, ...]
    rows: Mapping[str, Row]
    sweep: Mapping[str, Mapping[float, tuple[Measured, ...]]]
    choices: Mapping[str, Choice]
    left_out: Mapping[str, str]
    lengths: Mapping[tuple[str, float], Choice]


class Study:
    """Runs the cells.

    Args:
        setting: What they share.
        methods: All methods there are, by name.
        wanted: Those of the study; plain training is one of them.
        grid: Hyperparameters to choose from.
        tune: Whether to choose; else the first of each value is taken.
        shares: Of each method's samples; 1 is always among them.
        tell: Takes a line on each cell when it is measured.
    """

    def __init__(
        self,
        setting: Setting,
        methods: Mapping[str, Method],
        wanted: Sequence[str],
        grid: Grid,
        *,
        tune: bool,
        shares: Sequence[float] = (1.0,),
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.setting, self.methods, self.grid, self.tune, self.tell = setting, methods, grid, tune, tell
        plain = [OTHER_PLAIN] if any(is_other(methods[name]) for name in wanted) else []
        self.wanted = list(dict.fromkeys([PLAIN, *plain, *wanted]))
        self.shares = sorted({*shares, 1.0})
        self.products = Products(setting)
        self._turns = setting.turns.all_of
        self._measured: dict[Cell, Measured] = {}
        self._lengths: dict[tuple[str, float], Choice] = {}
        self._left_out: dict[str, str] = {}

    def run(self, seeds: int) -> Iterator[Results]:
        """Run all cells, one seed after the other; gives the results of all seeds so far."""
        choices = self._each({name: partial(self._choose, name, self.grid) for name in self.wanted})
        for count in range(1, seeds + 1):
            yield self._results(choices, range(count))

    def _each(self, parts: Mapping[str, Callable[[], Part]]) -> dict[str, Part]:
        """The parts of methods, but of those that are found to have nothing to train on."""
        told = {
            name: partial(self._unless_empty, name, part) for name, part in parts.items() if name not in self._left_out
        }
        return {name: part for name, part in self._turns(told).items() if name not in self._left_out}

    def _unless_empty(self, name: str, part: Callable[[], Part]) -> Part | None:
        try:
            return part()
        except NoRecords as error:
            self._left_out[name] = str(error)
            self.tell(f"left out {name}: {error}")
            return None

    def _results(self, choices: Mapping[str, Choice], seeds: Sequence[int]) -> Results:
        base = self._measure(Cell(BASE, self.setting.split), None)
        # what takes longest comes first, so that no process waits for it in the end; so does what is still to be made, one at a time
        names = sorted(choices, key=lambda name: not self.products.lacks(self.methods[name]))
        longest = {LONGEST: partial(self._longer, choices, seeds)}
        found = self._each(longest | {name: partial(self._row, name, choices, seeds) for name in names})
        longer, rows = found[LONGEST], {name: found[name] for name in choices if name in found}
        swept = [name for name, row in rows.items() if len(self.shares) > 1 and row.made]
        sweep = self._turns({name: partial(self._shares, name, choices[name].knobs, seeds) for name in swept})
        return Results(base, longer, rows, sweep, choices, dict(self._left_out), dict(self._lengths))

    def _longer(self, choices: Mapping[str, Choice], seeds: Sequence[int]) -> tuple[Measured, ...]:
        knobs = self._plain(choices[PLAIN], PLAIN, LONGER * choices[PLAIN].knobs.epochs)
        return self._seeds(PLAIN, knobs, seeds)

    def _shares(self, name: str, knobs: Knobs, seeds: Sequence[int]) -> dict[float, tuple[Measured, ...]]:
        return {share: self._seeds(name, knobs, seeds, share) for share in self.shares}

    def _row(self, name: str, choices: Mapping[str, Choice], seeds: Sequence[int]) -> Row:
        knobs, plain_name = choices[name].knobs, OTHER_PLAIN if is_other(self.methods[name]) else PLAIN
        plain = self._plain(choices[plain_name], plain_name, knobs.epochs)
        cells, same_steps = self._turns(
            {
                "own": partial(self._seeds, name, knobs, seeds),
                "plain": partial(self._seeds, plain_name, plain, seeds),
            }
        ).values()
        ratio = compute_ratio(cells[0].training, same_steps[0].training)
        as_long = self._plain(choices[plain_name], plain_name, ratio * knobs.epochs)
        same_compute = self._seeds(plain_name, as_long, seeds)
        return Row(cells, same_steps, same_compute, ratio, self.products.of(self.methods[name], knobs))

    def _plain(self, own: Choice, name: str, epochs: float) -> Knobs:
        """Plain training of some length, with the learning rate that is best for it; of its own length as it was chosen."""
        if epochs == own.knobs.epochs:
            return own.knobs
        if (name, epochs) not in self._lengths:
            self._lengths[name, epochs] = self._choose(name, replace(self.grid, epochs=[epochs]))
        return self._lengths[name, epochs].knobs

    def _choose(self, name: str, grid: Grid) -> Choice:
        choice = choose(self.methods, name, grid, self._on_validation if self.tune else None)
        for one in choice.tried:
            if one.cell.method == name and one.cell.knobs != choice.knobs and not self.setting.keep_models:
                forget_weights(one.folder)
        return choice

    def _seeds(self, name: str, knobs: Knobs, seeds: Sequence[int], share: float = 1.0) -> tuple[Measured, ...]:
        cells = [Cell(name, self.setting.split, seed, knobs, share) for seed in seeds]
        return self._measured_all(cells, self.methods[name])

    def _on_validation(self, method: Method, points: Sequence[Knobs]) -> tuple[Measured, ...]:
        cells = [Cell(method.name, self.setting.validation_split, 0, knobs) for knobs in points]
        is_reported = method.name in self.wanted  # what wins is measured on the other split, too
        return self._measured_all(cells, method, keep_weights=is_reported)

    def _measured_all(self, cells: Sequence[Cell], method: Method, **how: bool) -> tuple[Measured, ...]:
        return tuple(self._turns({cell.name: partial(self._measure, cell, method, **how) for cell in cells}).values())

    def _measure(self, cell: Cell, method: Method | None, *, keep_weights: bool = False) -> Measured:
        if cell not in self._measured:
            found = run_cell(cell, method, self.setting, self.products, keep_weights=keep_weights)
            self._measured[cell] = found
            seconds = f"   {found.training['seconds']:,.0f} s" if found.training else ""
            r1 = "   ".join(f"{side.upper()} {100 * found.metrics[f'{side}_R@1']:.1f}" for side in ("i2t", "t2i"))
            self.tell(f"cell    {cell.name}   R@1 {r1}{seconds}")
        return self._measured[cell]


def compute_ratio(training: Mapping[str, float], plain: Mapping[str, float]) -> float:
    """How many plain steps encode as many images or captions, whichever is more, as one of another training: rounded up to halves.

    Example:
        >>> compute_ratio({"images_per_step": 256, "texts_per_step": 150}, {"images_per_step": 128, "texts_per_step": 128})
        2.0
    """
    most = max(training[name] / plain[name] for name in ("images_per_step", "texts_per_step"))
    return max(math.ceil(2 * most - 0.02) / 2, 1.0)  # a batch may hold a caption twice


def is_other(method: Method) -> bool:
    """Whether it trains the study's other retriever."""
    return isinstance(method, Repair) and method.other_model
