"""The table of the settings that each method tried, and whether the best of them is inside what was tried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.study.columns import RANDOM, cell_of, random_cell
from repair_hf.study.results import BASE, Cell, Row
from repair_hf.study.statistics import Line, Lines

EDGES = {"learning_rate": ("the lowest rate", "the highest rate"), "epochs": ("the fewest epochs", "the most epochs")}
SCORES = ("R@1", "kept")
NOTE = (
    "On validation, with seed 0, unblended: the learning rates and epochs of each method that tried several. "
    "*Reported*: the setting of the other tables. If it is the highest or lowest that was tried, more may be better: "
    "`--learning-rates`, `--epochs`."
)


def tried(rows: Iterable[Row], lines: Lines, base: Row, suffix: str, where: str) -> Finding | None:
    """Compare the settings of each method of `lines`, those of one dataset; None if no method tried several.

    `base` is the base's row on validation.
    """
    of_method: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row.cell.learning_rate, row.cell.epochs)):
        cell = row.cell
        if replace(cell, learning_rate=0.0, epochs=0.0) == Cell(base.cell.data, cell.method, base.cell.split):
            of_method.setdefault(cell.method, []).append(row)
    table = []
    for method, line in lines.items():
        settings = of_method.get(method, [])
        if method == BASE or len(settings) < 2:
            continue
        reported = replace(line.cell, split=base.cell.split)
        verdict = _verdict(reported, [row.cell for row in settings])
        for row in settings:
            scores = [cell_of(measure, Line(base, [row]), lines) for measure in SCORES]
            setting = f"{method}, {row.cell.learning_rate:g}, {row.cell.epochs:g}"
            table.append([setting, *scores, verdict if row.cell == reported else ""])
    if not table:
        return None
    beside = [
        [RANDOM, *(random_cell(measure, base) for measure in SCORES), ""],
        [BASE, *(cell_of(measure, Line(base, [base]), lines) for measure in SCORES), ""],
    ]
    columns = ["setting", *SCORES, "reported"]
    return Finding(f"tried{suffix}", f"What was tried{where}", NOTE, pd.DataFrame([*beside, *table], columns=columns))


def _verdict(reported: Cell, cells: Sequence[Cell]) -> str:
    """Say whether a setting is at an edge of what was tried."""
    edges = []
    for axis, (lowest, highest) in EDGES.items():
        low, *_, high = sorted(getattr(cell, axis) for cell in cells)
        if low < high and getattr(reported, axis) in (low, high):
            edges.append(highest if getattr(reported, axis) == high else lowest)
    return f"yes, with {' and '.join(edges)}" if edges else "yes"
