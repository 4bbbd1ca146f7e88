"""All findings of a run: failures, edits, costs, repairs, people."""

from __future__ import annotations

import pandas as pd

from repair_hf.analysis.costs import PAID_HEADS, paid_rows
from repair_hf.analysis.errors import error_finding
from repair_hf.analysis.funnel import funnel, reasons
from repair_hf.analysis.people.findings import people_findings
from repair_hf.analysis.repairs import rank_finding, round_finding
from repair_hf.analysis.report import Finding
from repair_hf.analysis.run_data import RunData
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError
from repair_hf.training.fills import Edits


def run_findings(data: RunData, pairs: Pairs | None = None) -> list[Finding]:
    """Collect the findings of a run; `pairs` are those of its options by default."""
    rounds = round_finding(data.root)
    return [
        funnel(data),
        reasons(data),
        error_finding(data),
        _costs(data),
        _training_pairs(data, pairs),
        rank_finding(data),
        *([] if rounds is None else [rounds]),
        *people_findings(list(data.folders)),
    ]


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


def _training_pairs(data: RunData, pairs: Pairs | None) -> Finding:
    title = "Pairs for training"
    try:
        fill = Edits(data.pairs() if pairs is None else pairs, data.records)
    except UserError as error:  # the pairs lie elsewhere, or the records are from other pairs
        return Finding("training_pairs", title, f"Not counted: {error}")
    report = fill.report()
    rows = [("training captions", report["anchors"])]
    rows += [(f"with {number} edits beside them", report[f"beside_{n}"]) for n, number in ((2, "two"), (1, "one"))]
    rows += [(f"{way.upper()} edits", report[f"edits_{way}"]) for way in ("i2t", "t2i")]
    text = "With the default options of `train`. Each edit stands beside the item that it was made from."
    return Finding("training_pairs", title, text, pd.DataFrame(rows, columns=["", "count"]))
