"""Run a study, from Python or from `repair-hf study`: choose methods, check what they need, run, write the tables.

The way of the data: `options` and `setting` say what is compared; `plan` which cells that takes; `products` makes what
a method trains on, by `methods/`; `cells` trains and evaluates one method with one seed; `results` keeps the row;
`tables` turns the rows into tables. Several processes share a study: each skips cells and data that another works on.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import filelock

from repair_hf.analysis.report import Finding
from repair_hf.evaluation.words import load_parser
from repair_hf.llm.batches import BatchesOpen
from repair_hf.records.dataset import NoRecords
from repair_hf.runtime.options import UserError, did_you_mean, fill
from repair_hf.study.cells import run_cell
from repair_hf.study.methods.method import Maker
from repair_hf.study.options import StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions
from repair_hf.study.plan import Plan
from repair_hf.study.products import Products
from repair_hf.study.results import Cell, Results, Row
from repair_hf.study.setting import Setting, open_settings
from repair_hf.study.tables import tables_of, write_page
from repair_hf.synthesis.models import check_editor, check_llm

ON_RECORDS = ["repair", "repair-paper"]  # beside plain training


def run_study(*, output: str | Path, **options: Any) -> list[Finding]:
    """Compare methods on the same data, retriever, LLM, editor and budget, as `repair-hf study` does.

    Args:
        output: Folder of the study; the same call resumes.
        options: Other options of `repair-hf study`, such as `size="tiny"` or `methods=["repair"]`.

    Returns:
        The tables of `study.md`.

    Raises:
        UserError: If an option is not valid, or a method needs an option that is not set.
        RunStopped: If a ceiling is reached or a provider is down.
    """
    kinds = (StudyOptions, StudyPairsOptions, StudyLLMOptions, StudyEditorOptions)
    settings = open_settings(*fill(kinds, options | {"output": str(output)}, "run_study"))
    return run_cells(settings, chosen(settings))


def run_cells(
    settings: Sequence[Setting], wanted: list[str], tell: Callable[[str], None] = lambda line: None
) -> list[Finding]:
    """Run what is missing, unless the options want the tables alone; write them, and return them."""
    logging.getLogger("repair_hf.training").setLevel(logging.WARNING)  # a line for each cell is enough
    options, output = settings[0].options, settings[0].output
    results = Results(options.results or output / "results.parquet")
    studies = [Study(setting, wanted, results, tell) for setting in settings]
    if not options.table:
        check(settings, wanted)
        run_all(studies)
    sections = tables_of([study.plan for study in studies])
    write_page(sections, output, is_toy=any(setting.is_toy for setting in settings))
    return sections


def run_all(studies: Sequence[Study]) -> None:
    """Run all cells, one after the other, until none is missing.

    Raises:
        RunStopped: If a ceiling is reached or a provider is down.
        BatchesOpen: If answers will come with a batch; everything else is done.
    """
    for study in studies:
        study.submit()
    while steps := [is_news for study in studies if (is_news := study.step()) is not None]:
        if not any(steps):
            time.sleep(1)  # other processes work on all that is left
    if stops := [stop for study in studies for stop in study.with_provider.values()]:
        raise BatchesOpen({run: each for stop in stops for run, each in stop.open.items()})
    arms = [arm for study in studies if study.setting.options.keep_models for arm in study.plan.arms()]
    kept = {row.cell.run for arm in arms for row in (*arm.rows, *arm.same_steps, *arm.same_compute)}
    for folder in (studies[0].setting.output / "cells").glob("*"):
        if folder.name not in kept:  # what tuning has left, unless it is reported
            shutil.rmtree(folder, ignore_errors=True)


class Study:
    """The cells of a study on one dataset.

    Args:
        setting: What is compared.
        wanted: Names of the methods.
        results: The file of all results.
        tell: Called with a line for each finished cell.

    Attributes:
        plan: Its `arms` are the finished ones.
        with_provider: Methods that wait for a batch, in this run.
    """

    def __init__(
        self, setting: Setting, wanted: list[str], results: Results, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        self.setting, self.results, self.tell, self.products = setting, results, tell, Products(setting)
        self.plan = Plan(setting, wanted, self.find)
        self.with_provider: dict[str, BatchesOpen] = {}

    def find(self, cell: Cell) -> Row | None:
        """Return a finished cell; None if there is none.

        Raises:
            UserError: If it was made with other options, or (unless for a table) from other data.
        """
        row, setting = self.results.rows.get(cell), self.setting
        if row is None:
            return None
        digests = {"with other options": ("options", setting.digest(cell.method, cell.split))}
        if not setting.options.table:
            digests["from other data or records"] = "content", setting.content(cell.split)
        for how, (name, wanted) in digests.items():
            if row[name] != wanted:
                raise UserError(
                    f"{self.results.file} has `{cell.method}` on `{cell.data}` made {how} (digest {row[name]}, now "
                    f"{wanted}). Give another --output and --results, or the options that it was made with."
                )
        return row

    def submit(self) -> None:
        """With a batch API, give the provider all batches, before the first training."""
        if self.setting.models[None].llm.batch:
            for name in self.plan.wanted:
                self._with_data(name, partial(self.products.of, self.setting.methods[name]))

    def step(self) -> bool | None:
        """Try each missing cell; return whether anything is known now that was not before, or None if none is left."""
        self.results.read()
        self.plan.arms()
        missing = [cell for cell in self.plan.missing if cell.method not in self.with_provider]
        return any([self._try(cell) for cell in missing]) if missing else None

    def _try(self, cell: Cell) -> bool:
        """Run a cell unless another process does; return whether anything is known now that was not before."""
        if cell.method in self.plan.left_out:
            return True
        try:
            with self.setting.lock(cell.run, waits=False):
                self.results.read()
                if self.find(cell) is None:
                    self._with_data(cell.method, partial(self._run, cell))
        except filelock.Timeout:
            return False
        return True

    def _with_data(self, method: str, work: Callable[[], Any]) -> None:
        """Do what needs a method's data, and note if it has none, or waits for a batch."""
        try:
            work()
        except NoRecords as error:
            self.plan.left_out[method] = str(error)
            self.tell(f"left out {method} on {self.setting.name}: {error}")
        except BatchesOpen as stop:
            self.with_provider[method] = stop

    def _run(self, cell: Cell) -> None:
        row = run_cell(cell, self.setting, self.products)
        self.results.add(row)
        if cell.split == self.setting.options.test_split and not self.setting.options.keep_models:
            shutil.rmtree(self.setting.output / "cells" / cell.run, ignore_errors=True)
        r1 = "   ".join(f"{way.upper()} {100 * row.metrics[f'{way}_R@1']:.1f}" for way in ("i2t", "t2i"))
        seconds = f"   {row['seconds']:,.0f} s" if row["seconds"] else ""
        self.tell(f"cell    {cell.name}   R@1 {r1}{seconds}")


def chosen(settings: Sequence[Setting]) -> list[str]:
    """Return the methods of the study: those that are named, or all whose required options are set."""
    has_records, methods = all(setting.options.records for setting in settings), settings[0].methods
    names, lacks = settings[0].options.methods or (ON_RECORDS if has_records else []), lacking(settings)
    for name in names:
        if name not in methods:
            meant = did_you_mean([name], methods)
            raise UserError(f"`methods` has {name!r}, which is unknown. {meant}See `repair-hf study --list`.")
        if name in lacks:
            raise UserError(f"The method `{name}` needs {lacks[name]}; set it, or leave the method out.")
    return list(names) or [name for name in methods if name not in lacks]


def lacking(settings: Sequence[Setting]) -> dict[str, str]:
    """Return the methods that need options which are not set, and these in words."""
    found = {
        name: sorted({lack for setting in settings for lack in setting.lacks(method)})
        for name, method in settings[0].methods.items()
    }
    return {name: " and ".join(f"`{lack}`" for lack in lacks) for name, lacks in found.items() if lacks}


def check(settings: Sequence[Setting], wanted: Sequence[str]) -> None:
    """Report a missing or damaged split, model or package before anything is paid, also in a dry run."""
    methods, options = [settings[0].methods[name] for name in wanted], settings[0].options
    for setting in settings:
        if setting.options.records:
            setting.records  # noqa: B018  # loads and checks them
        if setting.world is None:
            for split in (options.test_split, *([options.validation_split] if options.tune else [])):
                setting.load(split)
        for method in methods:
            (llm, editor), means = setting.models_of(method.name), setting.means(method)
            if method.needs and importlib.util.find_spec(method.needs) is None:
                raise UserError(
                    f"`{method.name}` needs a package that is not installed ({method.needs}): pip install "
                    "'repair-hf[study]', or leave this method out."
                )
            if "spacy_model" in means:
                load_parser(setting.spacy_model, noun_chunks=True)
            if "llm" in means:
                check_llm(llm)
            if "editor" in means:
                draws = any(isinstance(part, Maker) and part.draws for part in method.parts.values())
                check_editor(editor, from_text=draws)
