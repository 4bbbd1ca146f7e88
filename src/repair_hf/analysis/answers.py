"""What opens a report: did it work, what did it cost, what to look at first."""

from __future__ import annotations

from typing import Any

import pandas as pd

from repair_hf.analysis.charts import NAMES
from repair_hf.analysis.costs import told
from repair_hf.analysis.repairs import find_ranks, recall_changes
from repair_hf.analysis.report import Answers, Finding
from repair_hf.analysis.run_data import RunData
from repair_hf.records.columns import REASONS


def answer(data: RunData) -> Answers:
    """Answer the three questions about a run."""
    changes = recall_changes(find_ranks(data.root))
    return Answers(did_it_work(changes), told(data.paid), what_to_look_at(data, changes))


def did_it_work(changes: pd.DataFrame) -> Finding:
    """R@1 before and after training, from `recall_changes`."""
    title = "Did it work?"
    if changes.empty:
        return Finding("recall", title, "No comparison found. Run `repair-hf evaluate BASE TRAINED --output …`.")
    rose, fell = int((changes["low"] > 0).sum()), int((changes["high"] < 0).sum())
    verdict = "Yes" if rose == len(changes) else "Partly" if rose else "No"
    note = (
        f"{verdict}: R@1 rose in {rose} and fell in {fell} of {len(changes)} comparisons. *: the 95% interval of the "
        "change excludes 0. Training without records also raises R@1: compare with such a model."
    )
    cells = changes.assign(
        model=[_name(row) for row in changes.itertuples()], cell=[*map(_cell, changes.itertuples())]
    )
    table = cells.pivot(index="model", columns="direction", values="cell").reindex(cells["model"].unique())
    table = table.rename(columns=lambda way: f"R@1, {NAMES[way]}").rename_axis(columns=None).reset_index()
    return Finding("recall", title, note, table, data=changes)


def what_to_look_at(data: RunData, changes: pd.DataFrame) -> list[tuple[str, str]]:
    """Name what went wrong most often and what only eyes can judge, each with the section that shows it."""
    found = []
    if len(data.dropped):
        reasons, total = data.dropped["reason"].value_counts(), len(data.dropped) + len(data.kept)
        found.append(
            (f"{reasons.iloc[0]:,} of {total:,} failures were dropped: {REASONS[reasons.index[0]]}.", "dropped")
        )
    for row in changes[changes["high"] < 0].itertuples():
        found.append((f"{_name(row)} lost {-row.change:.1f} points of R@1, {NAMES[row.direction]}.", "ranks"))
    if len(data.kept):
        return [*found, ("The records at the end: does each edit fit its query, and keep everything else?", "records")]
    return [*found, ("No failure became a record.", "funnel")]


def _cell(row: Any) -> str:
    return f"{row.before:.1f} → {row.after:.1f}{'' if row.low <= 0 <= row.high else ' *'}"


def _name(row: Any) -> str:
    return row.model.removeprefix("evaluate/")
