"""Which cells a study needs, given those that are finished.

Each method tries each learning rate with each number of epochs, with seed 0 and all its data. Where it has several of
them, the highest R@1 on validation (the mean of both directions) is its setting, of equals the first one. Its other
seeds and its budgets run at this setting alone. Plain training also tries half of the least epochs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.study.methods import PLAIN
from repair_hf.study.results import BASE, Cell, Row
from repair_hf.study.setting import Setting


class Plan:
    """What a study needs.

    Attributes:
        left_out: Methods without training data, with the reason; to be filled by who runs the cells.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.left_out: dict[str, str] = {}
        wanted = [("all", name) for name in dict.fromkeys([PLAIN, *setting.wanted])]
        self.lines = [*wanted, *((budget, name) for budget, each in setting.budgets.items() for name in each)]

    @property
    def names(self) -> list[str]:
        """The methods of which something is trained, plain training first."""
        return [name for name in dict.fromkeys(name for _, name in self.lines) if name not in self.left_out]

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are evaluated: validation too, if anything is chosen there."""
        return ("validation", "test") if any(len(self.space(name)) > 1 for name in self.names) else ("test",)

    def space(self, name: str) -> list[Cell]:
        """Return the settings that a method tries, with seed 0."""
        options, size = self.setting.options, self.setting.size
        rates, epochs = options.learning_rates or size.learning_rates, list(options.epochs or size.epochs)
        if name == PLAIN and len(rates) * len(epochs) > 1:
            epochs.append(min(epochs) / 2)
        start = Cell(self.setting.name, name, "validation")
        return [replace(start, learning_rate=rate, epochs=each) for rate, each in itertools.product(rates, epochs)]

    def cells(self, rows: Mapping[Cell, Row]) -> Iterator[Cell]:
        """Yield the cells of the study, as far as they are known: first what is chosen from, then what is reported."""
        yield from (Cell(self.setting.name, BASE, split) for split in self.splits)
        chosen = {}
        for name in self.names:
            space = self.space(name)
            yield from space if len(space) > 1 else ()
            chosen[name] = best(space, rows)
        for (budget, name), seed in itertools.product(self.lines, range(self.setting.options.seeds)):
            if (setting := chosen.get(name)) is not None:
                cell = replace(setting, split="test", seed=seed, budget=budget)
                yield from (replace(cell, split=split) for split in self.splits if split == "test" or budget == "all")

    def trainings(self, rows: Mapping[Cell, Row]) -> list[Cell]:
        """Return a cell of each training that is still missing; settings to come are taken to be the longest."""
        missing = {cell.run: cell for cell in self.cells(rows) if cell.method != BASE and cell not in rows}
        found, seeds = list(missing.values()), self.setting.options.seeds
        for budget, name in self.lines:
            if name in self.names and best(space := self.space(name), rows) is None:
                found += [max(space, key=lambda cell: cell.epochs)] * (seeds - (budget == "all"))
        return found


def best(space: Sequence[Cell], rows: Mapping[Cell, Row]) -> Cell | None:
    """Return the first cell with the highest R@1, the mean of both directions; None if one is missing."""
    if len(space) == 1:
        return space[0]
    if any(cell not in rows for cell in space):
        return None
    return max(space, key=lambda cell: sum(rows[cell].right[way].mean() for way in DIRECTIONS))
