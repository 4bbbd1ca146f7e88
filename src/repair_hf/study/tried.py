"""The table of the settings that each method tried, and whether the best of them is inside what was tried."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.study.columns import cell_of
from repair_hf.study.results import BASE, Cell, Row
from repair_hf.study.statistics import Line, Lines

AXES = {"learning_rate": ("the lowest rate", "the highest rate"), "epochs": ("the fewest epochs", "the most epochs")}
NOTE = (
    "On validation, with seed 0, unblended: the learning rates and epochs of each method that tried several. "
    "*Reported*: the setting of the other tables. If it is the highest or lowest that was tried, more may be better: "
    "`--learning-rates`, `--epochs`."
)


def tried(rows: Iterable[Row], lines: Lines, suffix: str, where: str) -> Finding | None:
    """Compare the settings of each method of `lines`, those of one dataset; None if no method tried several."""
    data = lines[BASE].cell.data
    found: dict[str, list[Row]] = {name: [] for name, line in lines.items() if line.cell.method == name}
    base = None
    for row in rows:
        cell = row.cell
        if (cell.data, cell.split, cell.seed, cell.budget, cell.blend) == (data, "validation", 0, "all", 1):
            found.get(cell.method, []).append(row)
            base = row if cell.method == BASE else base
    table = []
    for method, each in found.items():
        if base is None or method == BASE or len(each) < 2:
            continue
        each.sort(key=lambda row: (row.cell.learning_rate, row.cell.epochs))
        cells = [row.cell for row in each]
        for cell, row in zip(cells, each, strict=True):
            line = Line(base, [row])
            known = {"setting": f"{method}, {cell.learning_rate:g}, {cell.epochs:g}"}
            known |= {measure: cell_of(measure, line, lines) for measure in ("R@1", "kept")}
            table.append(known | {"reported": _verdict(cell, cells) if _is_of(lines[method].cell, cell) else ""})
    return Finding(f"tried{suffix}", f"What was tried{where}", NOTE, pd.DataFrame(table)) if table else None


def _is_of(reported: Cell, cell: Cell) -> bool:
    return all(getattr(reported, axis) == getattr(cell, axis) for axis in AXES)


def _verdict(best: Cell, cells: list[Cell]) -> str:
    """Say whether the best setting is at an edge of what was tried."""
    edges = []
    for axis, (lowest, highest) in AXES.items():
        values = {getattr(cell, axis) for cell in cells}
        if len(values) > 1 and getattr(best, axis) in (min(values), max(values)):
            edges.append(highest if getattr(best, axis) == max(values) else lowest)
    return f"yes, with {' and '.join(edges)}" if edges else "yes"
