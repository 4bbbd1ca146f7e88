"""A report: findings with their tables and charts, on one page and as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from repair_hf.analysis import charts
from repair_hf.analysis.pages import card, render
from repair_hf.analysis.record_sample import sample_records
from repair_hf.analysis.run_data import RunData
from repair_hf.analysis.tables import cell
from repair_hf.runtime.run_folder import write_atomically

SAMPLES = 12  # records on the page
SHOWN = 40  # rows of a table on the page; its CSV has all


@dataclass(frozen=True)
class Finding:
    """One section of a report."""

    name: str  # stem of its files
    title: str
    note: str  # what the numbers are and how to read them, or why there are none
    table: pd.DataFrame | None = None
    figure: Figure | None = None
    data: pd.DataFrame | None = None  # what the CSV holds if it holds more than the table

    def save(self, folder: Path) -> None:
        """Write the table as CSV and the figure as PNG, if there are any."""
        if self.table is not None:
            table = self.table if self.data is None else self.data
            write_atomically(folder / f"{self.name}.csv", table.to_csv(index=False))
        if self.figure is not None:
            charts.save(self.figure, folder / f"{self.name}.png")


@dataclass(frozen=True)
class Answers:
    """What opens a report, in sentences."""

    helped: Finding
    cost: str
    look: Sequence[tuple[str, str]]  # what to look at first, and the section that shows it


def write_report(data: RunData, folder: Path, findings: Sequence[Finding], answers: Answers, *, seed: int = 0) -> Path:
    """Write `report.html` with some records, and the findings' files beside it; return the path of the page."""
    few = sample_records(data.records, n=SAMPLES, folders=data.folders, seed=seed).rows if len(data.records) else []
    counts = f"{data.name} · {len(data.kept):,} records, {len(data.dropped):,} failures dropped"
    return write_findings(folder, "What was repaired", counts, findings, few, answers)


def write_findings(
    folder: Path,
    title: str,
    counts: str,
    findings: Sequence[Finding],
    rows: Sequence[dict[str, Any]],
    answers: Answers | None = None,
) -> Path:
    """Write answers, findings and a few rows as a report; return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for finding in (*findings, *([] if answers is None else [answers.helped])):
        finding.save(folder)
    helped = None if answers is None else _section(answers.helped)
    texts = {"title": title, "counts": counts, "answers": answers, "helped": helped}
    page = render("report.html", **texts, sections=list(map(_section, findings)), cards=list(map(card, rows)))
    write_atomically(folder / "report.html", page)
    return folder / "report.html"


def _section(finding: Finding) -> dict[str, Any]:
    heads, *rows = cells(finding)
    return {"finding": finding, "heads": heads, "rows": rows[:SHOWN], "left": max(len(rows) - SHOWN, 0)}


def cells(finding: Finding) -> list[list[str]]:
    """Return the heads and the rows of a finding's table, formatted."""
    table = pd.DataFrame() if finding.table is None else finding.table
    return [list(table.columns), *([cell(value) for value in row] for row in table.itertuples(index=False))]
