"""Run a study: take the cells that are missing, one after the other, until none is.

The way of the data: `options` and `setting` say what is compared; `plan` which cells that takes; `products` makes what
a method trains on, by `methods/`; `cells` trains and evaluates one method with one seed; `results` keeps the row;
`tables` turns the rows into tables. Several processes share a study: each skips cells and data that another works on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable

import filelock

from repair_hf.llm.batches import BatchesOpen
from repair_hf.records.dataset import NoRecords
from repair_hf.study.cells import forget, options_digest, run_cell
from repair_hf.study.plan import Plan
from repair_hf.study.products import Products
from repair_hf.study.results import BASE, Cell, Results, Row
from repair_hf.study.setting import Setting


class Study:
    """The cells of a study, and the file of their results.

    Args:
        setting: What is compared.
        wanted: Names of the methods.
        tell: Called with a line for each finished cell.

    Attributes:
        plan: Its `arms` are the finished ones.
    """

    def __init__(self, setting: Setting, wanted: list[str], tell: Callable[[str], None] = lambda line: None) -> None:
        self.setting, self.tell = setting, tell
        self.results, self.products = Results(setting.results_file), Products(setting)
        self.plan = Plan(setting, wanted, self.find)
        self._digests: dict[tuple[str, str, str], str] = {}
        self._with_provider: dict[tuple[str, str], BatchesOpen] = {}  # methods that wait for a batch, in this run

    def find(self, cell: Cell) -> Row | None:
        """Return a finished cell, checked against this study's options and, unless for a table, against its data."""
        method = None if cell.method == BASE else self.setting.methods[cell.method]
        data, key = self.setting.datasets[cell.data], (cell.data, cell.method, cell.split)
        if key not in self._digests:
            self._digests[key] = options_digest(self.setting, method, data, cell.split)
        found = self.results.find(cell, options=self._digests[key])
        if found is None or self.setting.options.table:
            return found
        return self.results.find(cell, options=self._digests[key], content=data.content(cell.split))

    def run(self) -> None:
        """Run all cells.

        Raises:
            RunStopped: If a ceiling is reached or a provider is down.
            BatchesOpen: If answers will come with a batch; everything else is done.
        """
        if self.setting.models[None].llm.batch:
            self._submit()
        while True:
            self.results.read()
            self.plan.arms()
            missing = [cell for cell in self.plan.missing if (cell.data, cell.method) not in self._with_provider]
            if not missing:
                break
            if not any([self._try(cell) for cell in missing]):
                time.sleep(1)  # other processes work on all that is left
        if self._with_provider:
            raise BatchesOpen({run: each for stop in self._with_provider.values() for run, each in stop.open.items()})
        self._forget_tried()

    def _submit(self) -> None:
        """Make the data of all methods before the first training: all batches are with the provider at once."""
        for data in self.setting.datasets.values():
            for name in self.plan.wanted:
                method = self.setting.methods[name]
                try:
                    self.products.of(method, data)
                except BatchesOpen as stop:
                    self._with_provider[data.name, name] = stop
                except NoRecords as error:
                    self._leave_out(data.name, name, error)

    def _try(self, cell: Cell) -> bool:
        """Run a cell unless another process does; return whether anything is known now that was not before."""
        method = None if cell.method == BASE else self.setting.methods[cell.method]
        if (cell.data, cell.method) in self.plan.left_out:
            return True
        try:
            with self.setting.lock(cell.run, waits=False):
                self.results.read()
                if self.find(cell) is not None:
                    return True
                row = run_cell(cell, method, self.setting, self.products, waits=False)
                self.results.add(row)
        except filelock.Timeout:
            return False
        except NoRecords as error:
            return self._leave_out(cell.data, cell.method, error)
        except BatchesOpen as stop:
            self._with_provider[cell.data, cell.method] = stop
            return True
        if cell.split == self.setting.options.test_split and not self.setting.options.keep_models:
            forget(cell, self.setting)
        self._tell(cell)
        return True

    def _forget_tried(self) -> None:
        """Delete the weights that tuning has left, and keep those of reported cells if they are wanted."""
        arms = self.plan.arms() if self.setting.options.keep_models else []
        kept = {row.cell.run for arm in arms for row in (*arm.rows, *arm.same_steps, *arm.same_compute)}
        for folder in (self.setting.output / "cells").glob("*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _leave_out(self, data: str, method: str, error: Exception) -> bool:
        self.plan.left_out[data, method] = str(error)
        self.tell(f"left out {method} on {data}: {error}")
        return True

    def _tell(self, cell: Cell) -> None:
        row = self.find(cell)
        assert row is not None, "it was just added"
        r1 = "   ".join(f"{way.upper()} {100 * row.metrics[f'{way}_R@1']:.1f}" for way in ("i2t", "t2i"))
        seconds = f"   {row['seconds']:,.0f} s" if row["seconds"] else ""
        self.tell(f"cell    {cell.name}   R@1 {r1}{seconds}")
