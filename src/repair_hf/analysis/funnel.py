"""The funnel: how many failures came through each stage, and why the others did not.

In:  the records of a run, and what was dropped.
Out: findings: the stages, the reasons, and which of the audit's two criteria rejects how much (the paper's table of QC filtering).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from repair_hf.analysis.charts import chart, grouped_bars, legend
from repair_hf.analysis.findings import Finding
from repair_hf.analysis.material import Material
from repair_hf.records.columns import DIRECTIONS, REASONS

CRITERIA = {"gt_invalid": "1: ground truth\ndoes not fit", "fp_too_similar": "2: false positive\nfits as well"}
STAGES = ("mined", "passed the audit", "instructed", "became records")


def lost_at(dropped: pd.DataFrame) -> pd.Series:
    """The stage, `audit`, `instruct` or `edit`, at which each dropped failure was lost: the first that left nothing behind."""
    is_audit = dropped["reason"].isin(list(CRITERIA)) | dropped["fp_reason"].isna()
    stages = np.select([is_audit, dropped["edit_instruction"].isna()], ["audit", "instruct"], "edit")
    return pd.Series(stages, index=dropped.index, dtype=object)


def funnel(material: Material) -> Finding:
    """How many failures reached each stage."""
    kept = material.kept["direction"].value_counts()
    lost = pd.DataFrame({"direction": material.dropped["direction"], "at": lost_at(material.dropped)}).value_counts()
    rows = []
    for direction in DIRECTIONS:
        losses = [lost.get((direction, stage), 0) for stage in ("audit", "instruct", "edit")]
        mined = int(kept.get(direction, 0) + sum(losses))
        left = mined - np.cumsum([0, *losses])
        rows += [
            (direction, stage, int(n), n / mined if mined else np.nan) for stage, n in zip(STAGES, left, strict=True)
        ]
    table = pd.DataFrame(rows, columns=["direction", "stage", "failures", "share of mined"])
    with chart(1.9) as (figure, axes):
        shares = {way: table[table["direction"] == way]["share of mined"].to_numpy() for way in DIRECTIONS}
        grouped_bars(axes, STAGES, shares, "{:.1%}")
        axes.set_xlabel("share of mined failures")
        axes.xaxis.set_major_formatter("{x:.0%}")
        legend(figure)
    told = (
        "A failure is lost at the first stage that rejects it or brings nothing of use; the reasons are counted below."
    )
    return Finding("funnel", "From failures to records", told, table, figure)


def reasons(material: Material) -> Finding:
    """Why failures were dropped."""
    counts = material.dropped.assign(stage=lost_at(material.dropped)).value_counts(["direction", "reason", "stage"])
    table = counts.rename("failures").reset_index().sort_values(["direction", "failures"], ascending=[True, False])
    table["meaning"] = table["reason"].map(REASONS)
    told = "Each dropped failure has one reason, and stands in the config dropped with it."
    return Finding("dropped", "Why failures were dropped", told, table)


def audit_shares(material: Material) -> Finding:
    """What share of the rejected failures each criterion of the audit rejects; a direction's shares add up to 100%."""
    rejected = material.dropped[material.dropped["reason"].isin(list(CRITERIA))]
    rows = []
    for direction in DIRECTIONS:
        found = rejected[rejected["direction"] == direction]["reason"]
        counts = [int((found == reason).sum()) for reason in CRITERIA]
        rows.append(
            (material.dataset, direction, *counts, *(n / len(found) if len(found) else np.nan for n in counts))
        )
    heads = ["dataset", "direction", *(f"criterion {k}" for k in (1, 2)), *(f"criterion {k}, share" for k in (1, 2))]
    table = pd.DataFrame(rows, columns=heads)
    with chart(1.4) as (figure, axes):
        shares = {way: table[table["direction"] == way][heads[4:]].to_numpy(float)[0] for way in DIRECTIONS}
        grouped_bars(axes, list(CRITERIA.values()), shares, "{:.1%}")
        axes.set_xlabel("share of what the audit rejects")
        axes.xaxis.set_major_formatter("{x:.0%}")
        legend(figure)
    told = "Of the failures that the audit rejects. Where both criteria reject, the first one counts: it is told as the reason."
    return Finding("audit", "What the audit rejects", told, table, figure)
