"""Kinds of error: how frequent each is, how near its edits stay to the false positive, and whether training repairs it.

In:  records; the kinds that the caption instructions name in brackets, and those by which image instructions were labelled.
Out: findings: the paper's tables of error types and of editing quality by type, and what became of the queries of each type.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from repair_hf.analysis.charts import COLOURS, chart, grouped_bars, legend
from repair_hf.analysis.findings import Finding
from repair_hf.analysis.material import Material
from repair_hf.records.columns import DIRECTIONS
from repair_hf.synthesis.instruct import ERROR_TYPES

DENSITY = "multi-label density"


def typed(kept: pd.DataFrame, labels: Mapping[str, list[str]]) -> pd.DataFrame:
    """The records whose kinds of error are known: `direction`, `record_id`, `q_id`, `edit_similarity`, `error_types`.

    Args:
        kept: These columns of all records; instructions for captions have named their kinds.
        labels: record_id -> kinds, of records whose instructions for images were labelled.
    """
    frame = kept[["direction", "record_id", "q_id", "edit_similarity", "error_types"]].copy()
    is_image = frame["direction"] == "t2i"
    frame["error_types"] = frame["error_types"].map(lambda names: [] if names is None else list(names))
    frame.loc[is_image, "error_types"] = frame.loc[is_image, "record_id"].map(lambda name: labels.get(name, []))
    return frame[frame["error_types"].map(len) > 0]


def error_shares(records: pd.DataFrame) -> pd.DataFrame:
    """What share of a direction's records has each kind of error.

    A record may have several, so shares add up to the density, which is more than 100% where records have more than one kind.

    Args:
        records: `direction` and `error_types`.

    Returns:
        `error`, one row per kind by frequency and one for the density; a column per direction, NaN where it has no records.
    """
    shares = {}
    for direction in DIRECTIONS:
        of_way = records[records["direction"] == direction]["error_types"]
        counts = of_way.explode().value_counts()
        shares[direction] = [counts.get(name, 0) / len(of_way) if len(of_way) else np.nan for name in ERROR_TYPES]
    table = pd.DataFrame({"error": ERROR_TYPES, **shares})
    table = table.sort_values(list(DIRECTIONS[::-1]), ascending=False, ignore_index=True)
    density = {way: table[way].sum(min_count=1) for way in DIRECTIONS}
    return pd.concat([table, pd.DataFrame([{"error": DENSITY, **density}])], ignore_index=True)


def similarity_by_error(records: pd.DataFrame) -> pd.DataFrame:
    """Cosine of edit and false positive by kind of error: the nearer to 1, the less was changed.

    Args:
        records: `direction`, `error_types`, `edit_similarity`.

    Returns:
        `direction`, `error`, `mean`, `sd`, `median`, `n`; a record counts for each of its kinds.
    """
    each = records.explode("error_types").rename(columns={"error_types": "error"}).dropna(subset=["edit_similarity"])
    grouped = each.groupby(["direction", "error"])["edit_similarity"]
    table = grouped.agg(mean="mean", sd="std", median="median", n="size").reset_index()
    return table.sort_values(["direction", "mean"], ascending=[True, False], ignore_index=True)


def error_findings(material: Material) -> list[Finding]:
    """How frequent each kind is, and how near its edits are."""
    records = typed(material.kept, material.labels())
    known, total = (frame["direction"].value_counts() for frame in (records, material.kept))
    counted = ", ".join(f"{known.get(way, 0):,} of {total.get(way, 0):,} {way}" for way in DIRECTIONS)
    told = f"Kinds are known of {counted} records. Caption instructions name them; image instructions have to be labelled by a language model first (--llm)."
    if records.empty:
        return [Finding("errors", "Kinds of error", told)]
    shares, near = error_shares(records), similarity_by_error(records)
    with chart(2.4) as (figure, axes):
        kinds = shares[shares["error"] != DENSITY]
        known_ways = [way for way in DIRECTIONS if known.get(way, 0)]
        grouped_bars(axes, list(kinds["error"]), {way: kinds[way].to_numpy(float) for way in known_ways}, "{:.1%}")
        axes.set_xlabel("share of records; a record may have several kinds", fontsize=7)
        axes.xaxis.set_major_formatter("{x:.0%}")
        legend(figure)
    with chart(2.2) as (spread, axes):
        for place, way in enumerate(known_ways):
            part = near[near["direction"] == way].set_index("error").reindex(kinds["error"])
            at = np.arange(len(part)) + 0.24 * (place - (len(known_ways) - 1) / 2)
            axes.errorbar(part["mean"], at, xerr=part["sd"], fmt="o", ms=3.5, lw=1, color=COLOURS[way])
            axes.scatter(part["median"], at, marker="|", s=40, color="black", zorder=3)
        axes.set_yticks(range(len(kinds)), kinds["error"])
        axes.invert_yaxis()
        axes.set_xlabel("cosine to the false positive: ● mean ± sd, | median", fontsize=7)
        legend(spread)
    told_near = "The encoder that failed measures it. Nearer means that less was changed, not that the edit is right."
    return [
        Finding("errors", "Kinds of error", told, shares, figure),
        Finding("similarity_by_error", "How near edits stay, by kind of error", told_near, near, spread),
    ]
