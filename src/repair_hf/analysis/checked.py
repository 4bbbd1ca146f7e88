"""The check of selected edits, as a sentence and as a finding of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import SIDES, interval_cell
from repair_hf.runtime.files import read_json
from repair_hf.synthesis.checks import EVERY_TYPE, check_rows

CHECKED_HEADS = ("checked", "", "edits", "fit", "in %")


def checked_in(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the rows of `check_rows` of folders of records, added up."""
    checked: Counter[tuple[str, str]] = Counter()
    fit: Counter[tuple[str, str]] = Counter()
    for file in (folder / "summary.json" for folder in folders):
        for row in read_json(file).get("checked", ()) if file.is_file() else ():
            checked[row["direction"], row["error_type"]] += row["checked"]
            fit[row["direction"], row["error_type"]] += row["fit"]
    return check_rows({kind: (count, fit[kind]) for kind, count in checked.items()})


def checked_table(rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Build the rows under `CHECKED_HEADS`: a direction as a whole, then its error types."""
    return [(row["direction"], row["error_type"], row["checked"], row["fit"], share_cell(row)) for row in rows]


def share_cell(row: Mapping[str, Any]) -> str:
    """Format the share of edits that fit, in percent, with its interval."""
    return interval_cell("share", row["share"], row["low"], row["high"])


def describe_checked(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say in a sentence a direction how many edits fit their query; empty without a check."""
    sentences = [
        f"An LLM checked {row['checked']:,} {SIDES[row['direction']]} edits: {row['share']:.1%} fit their query "
        f"(95% interval {row['low']:.1%} to {row['high']:.1%})."
        for row in rows
        if row["error_type"] == EVERY_TYPE
    ]
    return " ".join(sentences)


def checked_finding(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return the finding of a report; none without a check."""
    if not rows:
        return []
    note = (
        "The audit was asked again, with the selected edit in the place of the false positive. In brackets: 95% "
        "interval (Jeffreys' prior). An edit may have several error types."
    )
    table = pd.DataFrame(checked_table(rows), columns=["direction", "error", "checked", "fit", "in %"])
    return [Finding("checked", "Do the edits fit?", note, table, data=pd.DataFrame(rows))]
