"""The funnel: how many failures passed each stage, and why the others were dropped."""

from __future__ import annotations

import numpy as np
import pandas as pd

from repair_hf.analysis.charts import share_bars
from repair_hf.analysis.report import Finding
from repair_hf.analysis.run_data import RunData
from repair_hf.records.columns import DIRECTIONS, REASONS

REJECTED = ("gt_invalid", "fp_too_similar")  # by the audit
AUDITED = "passed the audit"
STAGES = ("mined", AUDITED, "instructed", "became records")


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
    kept, is_audited = data.kept["direction"].value_counts(), was_audited(data)
    stages = STAGES if is_audited else [stage for stage in STAGES if stage != AUDITED]
    at = lost_at(data.dropped, is_audited=is_audited)
    lost = pd.DataFrame({"direction": data.dropped["direction"], "at": at}).value_counts()
    rows = []
    for direction in DIRECTIONS:
        losses = [lost.get((direction, stage), 0) for stage in ("audit", "instruct", "edit")[-len(stages) + 1 :]]
        mined = int(kept.get(direction, 0) + sum(losses))
        left = mined - np.cumsum([0, *losses])
        rows += [
            (direction, stage, int(n), n / mined if mined else np.nan) for stage, n in zip(stages, left, strict=True)
        ]
    table = pd.DataFrame(rows, columns=["direction", "stage", "failures", "share of mined"])
    shares = {way: table[table["direction"] == way]["share of mined"].to_numpy() for way in DIRECTIONS}
    figure = share_bars(stages, shares, "share of mined failures", height=1.9)
    note = "A failure is lost at the first stage that rejects it or gives no usable result; see the reasons below."
    return Finding("funnel", "From failures to records", note, table, figure)


def reasons(data: RunData) -> Finding:
    """Why failures were dropped."""
    at = lost_at(data.dropped, is_audited=was_audited(data))
    counts = data.dropped.assign(stage=at).value_counts(["direction", "reason", "stage"])
    table = counts.rename("failures").reset_index().sort_values(["direction", "failures"], ascending=[True, False])
    table["meaning"] = table["reason"].map(REASONS)
    note = "Each dropped failure has one reason; the config dropped holds both."
    return Finding("dropped", "Why failures were dropped", note, table)
