"""The funnel: how many failures passed each stage, and why the others were dropped."""

from __future__ import annotations

import numpy as np
import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.run_data import RunData
from repair_hf.analysis.tables import percent
from repair_hf.records.columns import DIRECTIONS, REASONS

REJECTED = ("gt_invalid", "fp_too_similar")  # by the audit
STAGES = {
    "audit": "passed the audit",
    "instruct": "instructed",
    "edit": "became records",
}  # what passing each is called


def was_audited(data: RunData) -> bool:
    """Return whether failures were audited: the audit says of each why its false positive is wrong."""
    return bool(data.kept["fp_reason"].notna().any() or data.dropped["fp_reason"].notna().any())


def lost_at(dropped: pd.DataFrame, *, is_audited: bool = True) -> pd.Series:
    """Find the stage (`audit`, `instruct`, `edit`) that lost each dropped failure: the first without a result."""
    is_audit = is_audited & (dropped["reason"].isin(REJECTED) | dropped["fp_reason"].isna())
    stages = np.select([is_audit, dropped["edit_instruction"].isna()], ["audit", "instruct"], "edit")
    return pd.Series(stages, index=dropped.index, dtype=object)


def funnel(data: RunData) -> Finding:
    """How many failures reached each stage."""
    is_audited = was_audited(data)
    stages = {name: passed for name, passed in STAGES.items() if is_audited or name != "audit"}
    lost = lost_at(data.dropped, is_audited=is_audited).groupby(data.dropped["direction"]).value_counts()
    table = pd.DataFrame({"stage": ["mined", *stages.values()]})
    for way in DIRECTIONS:
        losses = [int(lost.get((way, stage), 0)) for stage in stages]
        mined = int((data.kept["direction"] == way).sum()) + sum(losses)
        table[way] = mined - np.cumsum([0, *losses])
        table[f"{way}, of mined"] = [percent(left / mined if mined else None) for left in table[way]]
    note = "A failure is lost at the first stage that rejects it or gives no usable result; see the reasons below."
    return Finding("funnel", "From failures to records", note, table)


def reasons(data: RunData) -> Finding:
    """Why failures were dropped."""
    table = pd.crosstab(data.dropped["reason"], data.dropped["direction"]).reindex(
        columns=list(DIRECTIONS), fill_value=0
    )
    table = table.loc[table.sum(axis=1).sort_values(ascending=False).index].reset_index()
    table["meaning"] = table["reason"].map(REASONS)
    note = "Each dropped failure has one reason; the config `dropped` holds both."
    return Finding("dropped", "Why failures were dropped", note, table)
