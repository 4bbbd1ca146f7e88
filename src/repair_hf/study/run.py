"""Run a study, from Python or from `repair-hf study`: run what is missing, write the tables.

The way of the data: `options` and `setting` say what is compared, `methods` how; `plan` which cells that takes;
`products` makes what a method trains on, by `makers`; `cells` trains and evaluates; `results` keeps the rows; `tables`
and `rule` read them. Several processes share a study: each skips cells and data that another works on.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock

from repair_hf.analysis.report import Finding
from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.records.dataset import NoRecords
from repair_hf.runtime.options import fill
from repair_hf.runtime.stage import claim
from repair_hf.study.cells import run_cell
from repair_hf.study.estimate import describe_time
from repair_hf.study.options import SIZES, StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions
from repair_hf.study.paper import aro_table, results_of_setting
from repair_hf.study.plan import Plan
from repair_hf.study.products import Products
from repair_hf.study.results import Cell, Results, load_rows, save_rows
from repair_hf.study.setting import Setting
from repair_hf.study.tables import tables_of, write_page

Tell = Callable[[str], None]


def run_study(*, output: str | Path, **options: Any) -> list[Finding]:
    """Compare methods on the same data, retriever, LLM, editor and budget, as `repair-hf study` does.

    Args:
        output: Folder of the study; the same call resumes.
        options: Other options of `repair-hf study`, such as `size="tiny"` or `methods=["repair-batch"]`.

    Returns:
        The tables of `study.md`.

    Raises:
        UserError: If an option is not valid, or a method needs an option that is not set.
        RunStopped: If a ceiling is reached or a provider is down, or answers will come with a batch.
    """
    kinds = (StudyOptions, StudyPairsOptions, StudyLLMOptions, StudyEditorOptions)
    return study(*fill(kinds, options | {"output": str(output)}, "run_study"))


def study(
    options: StudyOptions,
    pairs: StudyPairsOptions,
    llm: StudyLLMOptions,
    editor: StudyEditorOptions,
    tell: Tell = lambda line: None,
) -> list[Finding]:
    """Run what is missing, unless the options want tables alone; write the tables, and return them."""
    output, left_out = Path(options.output), dict[str, str]()
    if options.table:
        claim(output, "study")
        rows = load_rows(options.table)
        is_toy = {row.cell.data for row in rows} <= SIZES.keys()
    else:
        setting = Setting(options, pairs, llm, editor)
        plan, results, is_toy = Plan(setting), Results(output / "rows"), setting.is_toy
        _run(setting, plan, results, tell)
        order = {cell.name: place for place, cell in enumerate(plan.cells(results.rows))}
        rows = sorted(
            (row for row in results.rows.values() if row.cell.name in order),
            key=lambda row: (order[row.cell.name], -row.cell.blend),
        )
        save_rows(rows, output / "results.parquet")
        left_out = plan.left_out
    models, rounds = (options.model, llm.llm, editor.editor), len(options.records)
    published = results_of_setting(options.paper, models, rounds) if options.paper else {}
    sections = tables_of(rows, published, left_out)
    if options.aro:
        sections.append(aro_table(options.aro, published))
    write_page(sections, output, is_toy=is_toy)
    return sections


def _run(setting: Setting, plan: Plan, results: Results, tell: Tell) -> None:
    """Run all cells, one after the other, until none is missing."""
    logging.getLogger("repair_hf.training").setLevel(logging.WARNING)  # a line for each cell is enough
    setting.check(plan.names, plan.splits)
    setting.claim()
    products = Products(setting)
    if trainings := plan.trainings(results.rows):
        tell(describe_time(setting, trainings, len(plan.splits)))
    while missing := [cell for cell in dict.fromkeys(plan.cells(results.rows)) if cell not in results.rows]:
        if not any([_try(cell, setting, plan, results, products, tell) for cell in missing]):
            time.sleep(1)  # other processes work on all that is left
        results.read()
    kept = {cell.run for cell in results.rows if cell.split == "test" and setting.options.keep_models}
    for run in {cell.run for cell in plan.cells(results.rows)} - kept:  # another process may train what is not planned
        shutil.rmtree(setting.output / "cells" / run, ignore_errors=True)


def _try(cell: Cell, setting: Setting, plan: Plan, results: Results, products: Products, tell: Tell) -> bool:
    """Run a cell unless another process does; return whether anything is known now that was not before."""
    if cell.method in plan.left_out:
        return True
    try:
        with setting.lock(cell.run, waits=False):
            results.read()
            if cell in results.rows:
                return True
            rows = run_cell(cell, setting, products)
            results.add(rows)
    except filelock.Timeout:
        return False
    except NoRecords as error:
        plan.left_out[cell.method] = str(error)
        tell(f"left out {cell.method}: {error}")
        return True
    r1 = "   ".join(f"{way.upper()} {100 * rows[0].right[way].mean():.1f}" for way in DIRECTIONS)
    tell(f"cell    {cell.name}   R@1 {r1}   {rows[0]['seconds'] or 0:,.0f} s")
    return True
