"""Error types: how frequent each is among the records."""

from __future__ import annotations

import numpy as np
import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.run_data import RunData
from repair_hf.analysis.tables import percent
from repair_hf.records.columns import DIRECTIONS
from repair_hf.synthesis.instruct import ERROR_TYPES

DENSITY = "multi-label density"


def error_shares(records: pd.DataFrame) -> pd.DataFrame:
    """Share of a direction's records that has each error type.

    A record may have several types, so the shares add up to the density, which may exceed 100%.

    Returns:
        `error`, one row per type by frequency and one for the density; a column per direction, NaN without records.
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


def error_finding(data: RunData) -> Finding:
    """Frequency of each error type: from an instruction for a caption, or by the label of one for an image."""
    frame, labels = data.kept[["direction", "record_id", "error_types"]].copy(), data.labels()
    is_image = frame["direction"] == "t2i"
    frame["error_types"] = frame["error_types"].map(lambda names: [] if names is None else list(names))
    frame.loc[is_image, "error_types"] = frame.loc[is_image, "record_id"].map(lambda name: labels.get(name, []))
    records = frame[frame["error_types"].map(len) > 0]
    known, total = (each["direction"].value_counts() for each in (records, data.kept))
    counted = ", ".join(f"{known.get(way, 0):,} of {total.get(way, 0):,} {way}" for way in DIRECTIONS)
    note = (
        f"Shares of the {counted} records whose error types are known; a record may have several. Caption "
        "instructions name them; image instructions must first be labelled by an LLM (--llm)."
    )
    if records.empty:
        return Finding("errors", "Error types", note)
    shares = error_shares(records)
    shown = shares.assign(**{way: shares[way].map(percent) for way in DIRECTIONS})
    return Finding("errors", "Error types", note, shown, data=shares)
