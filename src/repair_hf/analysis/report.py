"""A report: findings with their tables, on one page and as CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from repair_hf.analysis.bars import Bars
from repair_hf.analysis.blend_curve import Curve
from repair_hf.analysis.forest import Forest
from repair_hf.analysis.pages import card, render
from repair_hf.analysis.tables import SIDES, Rows, cell, spelled
from repair_hf.runtime.run_folder import write_atomically

PAGE = "report.html"
SAMPLES = 12  # records on the page
OPEN = 10  # rows of a table that is not folded
SHOWN = 40  # rows of a table on the page; its CSV has all


@dataclass(frozen=True)
class Finding:
    """One section of a report."""

    name: str  # stem of its files
    title: str
    note: str  # what the numbers are and how to read them, or why there are none
    table: pd.DataFrame | None = None
    data: pd.DataFrame | None = None  # what the CSV holds if it holds more than the table
    plot: Forest | Curve | Bars | None = None  # of the same numbers; a forest or bars stand in place of the table

    @property
    def rows(self) -> Rows:
        """Heads and rows of the table, formatted, with directions as `T2I` and `I2T`; both empty without a table."""
        table = pd.DataFrame() if self.table is None else self.table
        rows = [[SIDES.get(text, text) for text in map(cell, row)] for row in table.itertuples(index=False)]
        return [spelled(head) for head in table.columns], rows

    def save(self, folder: Path) -> None:
        """Write the table as CSV, if there is one."""
        if self.table is not None:
            table = self.table if self.data is None else self.data
            write_atomically(folder / f"{self.name}.csv", table.to_csv(index=False))


@dataclass(frozen=True)
class Answers:
    """What opens a report."""

    helped: Finding
    cost: str
    look: Sequence[tuple[str, str]]  # what to look at first, and the section that shows it
    kept: Finding | None = None  # what blends gain and keep, if they were evaluated

    @property
    def findings(self) -> list[Finding]:
        return [self.helped] if self.kept is None else [self.helped, self.kept]


def write_report(
    folder: Path,
    title: str,
    counts: str,
    findings: Sequence[Finding],
    rows: Sequence[dict[str, Any]],
    answers: Answers | None = None,
    ignored: Mapping[str, str] | None = None,
) -> None:
    """Write a page of answers, findings and some records or failures, with the findings' files beside it.

    `ignored` are records that the report is not about, with the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for finding in (*findings, *([] if answers is None else answers.findings)):
        finding.save(folder)
    page = render(
        "report.html",
        title=title,
        counts=counts,
        ignored=ignored or {},
        answers=answers,
        findings=findings,
        most=SHOWN,
        open=OPEN,
        cards=list(map(card, rows)),
    )
    write_atomically(folder / PAGE, page)
