"""Margins: whether queries prefer an edit to its false positive, before and after training.

The margin of a query is cos(query, edit) - cos(query, false positive); above 0 the query prefers the edit.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from datasets import Dataset
from matplotlib.figure import Figure

from repair_hf.analysis.charts import COLORS, NAMES, chart
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.records.columns import MODALITIES
from repair_hf.runtime.options import UserError


def margins(records: Dataset, encoder: DualEncoder) -> pd.DataFrame:
    """Compute the margin of each record's query, as columns `record_id`, `direction`, `margin`.

    Raises:
        UserError: If records lack images.
    """
    found = []
    for direction, kinds in MODALITIES.items():
        rows = [row for row in records if row["direction"] == direction]
        vectors = {}
        for role in ("q", "fp", "edit") if rows else ():
            items = [row[f"{role}_{kinds[role]}"] for row in rows]
            if None in items:
                raise UserError(
                    f"{items.count(None)} {direction} records lack the {kinds[role]} of {role}; give --pairs."
                )
            vectors[role] = (encoder.embed_texts if kinds[role] == "text" else encoder.embed_images)(items)  # (n, D)
        for place, row in enumerate(rows):
            gain = vectors["q"][place] @ (vectors["edit"][place] - vectors["fp"][place])
            found.append((row["record_id"], direction, float(gain)))
    return pd.DataFrame(found, columns=["record_id", "direction", "margin"])


def margin_figure(before: pd.DataFrame, after: pd.DataFrame) -> Figure:
    """Draw the margins of the same records before and after training."""
    ways = [way for way in NAMES if (before["direction"] == way).any()]
    low, high = (f(pd.concat([before["margin"], after["margin"]])) for f in (np.min, np.max))
    edges = np.linspace(low, high, 45)
    with chart(1.95, columns=len(ways)) as (figure, panels):
        for axes, way in zip(np.atleast_1d(panels), ways, strict=True):
            old, new = (table[table["direction"] == way]["margin"] for table in (before, after))
            axes.hist(old, edges, color="#aaaaaa", label=f"before: {np.mean(old > 0):.0%}")
            axes.hist(new, edges, histtype="step", color=COLORS[way], lw=1.4, label=f"after: {np.mean(new > 0):.0%}")
            axes.axvline(0, ymax=0.66, color="black", lw=0.9, ls=":")
            axes.set_title(f"{NAMES[way]}: edit preferred", loc="left", fontsize=7)
            axes.set_xlabel("cos(q, edit) − cos(q, fp)", fontsize=7)
            axes.set_yticks([])
            axes.legend(fontsize=6.5, loc="upper left")
            axes.set_ylim(0, 1.5 * axes.get_ylim()[1])
    return figure
