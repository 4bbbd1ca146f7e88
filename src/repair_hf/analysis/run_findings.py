"""All findings of a run: funnel, judgements, costs, error types, distributions, grids, ranks, rounds."""

from __future__ import annotations

import pandas as pd

from repair_hf.analysis.costs import PAID_HEADS, paid_rows
from repair_hf.analysis.distributions import candidates, distributions
from repair_hf.analysis.errors import error_findings
from repair_hf.analysis.funnel import audit_shares, funnel, reasons
from repair_hf.analysis.people.findings import people_findings
from repair_hf.analysis.repairs import rank_findings, round_finding
from repair_hf.analysis.report import Finding
from repair_hf.analysis.run_data import RunData
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError
from repair_hf.training.grids import SOURCES, Grids

SLOTS = {"image": "images, slot 2", "caption": "captions, slot 3"}


def run_findings(data: RunData, pairs: Pairs | None = None) -> list[Finding]:
    """Collect the findings of a run, in the order of its stages; `pairs` are those of its options by default."""
    rounds = round_finding(data.root)
    return [
        funnel(data),
        reasons(data),
        audit_shares(data),
        *people_findings(list(data.folders)),
        _costs(data),
        *error_findings(data),
        candidates(data),
        *distributions(data),
        _grids(data, pairs),
        *rank_findings(data),
        *([] if rounds is None else [rounds]),
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


def _grids(data: RunData, pairs: Pairs | None) -> Finding:
    title = "Grids"
    try:
        grids = Grids(data.pairs() if pairs is None else pairs, data.records)
    except UserError as error:  # the pairs lie elsewhere, or the records are from other pairs
        return Finding("grids", title, f"Not counted: {error}")
    report = grids.report()
    sizes = {3: "full, 3 x 3", 2: "one side is missing, 2 x 2", 0: "none"}
    rows: list[tuple[str, str, int | str]] = [("anchors", "training captions", report["anchors"])]
    rows += [("grids", size, report[f"grids_{n}"]) for n, size in sizes.items()]
    for item, slot in SLOTS.items():
        counts = {source: report[name] for source in SOURCES if (name := f"{item}_{source}") in report}
        rows += [(slot, source.replace("_", " "), count) for source, count in counts.items()]
    rows.append(("off-diagonal cells", "in all", report["cells"]))
    rows.append(("off-diagonal cells", "known to be true pairs, masked out of the loss", report["cells_known"]))
    rows += [("edits that can train", way, f"{share:.1%}") for way, share in grids.edits_reachable().items()]
    text = (
        "One draw per training caption, with the default options. Slots 2 and 3 hold a match of each false positive: "
        "the edit that was made from the anchor (reciprocal), the edit of another record of that query, or the "
        "dataset's own annotation."
    )
    return Finding("grids", title, text, pd.DataFrame(rows, columns=["", "what", "count"]))
