"""All findings of a run: whether repair helped, failures, edits, costs, people."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from repair_hf.analysis.comparisons import repair_findings
from repair_hf.analysis.costs import PAID_HEADS, describe_paid, paid_rows
from repair_hf.analysis.errors import error_finding
from repair_hf.analysis.funnel import funnel, reasons
from repair_hf.analysis.people.findings import people_findings
from repair_hf.analysis.report import Answers, Finding
from repair_hf.analysis.rounds import round_rows
from repair_hf.analysis.run_data import RunData
from repair_hf.records.columns import REASONS
from repair_hf.runtime.own_files import read_json


def run_findings(data: RunData) -> tuple[Answers, list[Finding]]:
    """Collect what opens the report of a run, and its sections."""
    helped, *ranks = repair_findings(data.root)
    sections = [
        funnel(data),
        reasons(data),
        error_finding(data),
        _costs(data),
        *ranks,
        *_rounds(data.root),
        *people_findings(list(data.folders)),
    ]
    return Answers(helped, describe_paid(data.paid), _what_to_look_at(data, helped)), sections


def _what_to_look_at(data: RunData, helped: Finding) -> list[tuple[str, str]]:
    """Name what went wrong most often and what only eyes can judge, each with the section that shows it."""
    found = []
    if len(data.dropped):
        counts, total = data.dropped["reason"].value_counts(), len(data.dropped) + len(data.kept)
        found.append(
            (f"{counts.iloc[0]:,} of {total:,} failures were dropped: {REASONS[counts.index[0]]}.", "dropped")
        )
    lost = [] if helped.data is None else helped.data[helped.data["high"] < 0]["comparison"].unique()
    found += [(f"{name}: worse with records.", "ranks") for name in lost]
    if len(data.kept):
        return [
            *found,
            ("The examples at the end: does each edit fit its query, and keep everything else?", "records"),
        ]
    return [*found, ("No failure became a record.", "funnel")]


def _costs(data: RunData) -> Finding:
    paid, title = data.paid, "What it cost"
    if not paid:
        return Finding("costs", title, "There is no ledger of payments beside these records.")
    text = (
        "Thousands of tokens, as counted by the provider, over all runs in the folder. Dollars are list prices at the "
        "time. Rejected failures are paid for too."
    )
    heads = ["stage", "direction", *PAID_HEADS[2:]]
    return Finding("costs", title, text, pd.DataFrame(paid_rows(paid), columns=heads))


def _rounds(root: Path | None) -> list[Finding]:
    """R@1 after each round of `repair-hf run`; none if there were no rounds."""
    if root is None or not (root / "rounds.json").is_file():
        return []
    history = read_json(root / "rounds.json", needs=("rounds", "split", "stopped"))
    heads, rows = round_rows(history["rounds"])
    note = f"Measured on the split `{history['split']}`; stopped {history['stopped']}."
    return [Finding("rounds", "Round by round", note, pd.DataFrame(rows, columns=heads))]
