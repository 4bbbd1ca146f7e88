"""Distributions: edits per query, queries per false positive (hubs), and similarities of candidates.

The four distributions follow the paper's statistics:

- hard positives: edited captions per query image, edited images per query caption;
- hard negatives: for how many queries an image, or a caption, is the false positive. (The paper counts negatives per
  anchor. A caption has one false positive image, so its hubs show only from the other side, as here.)
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from repair_hf.analysis.charts import COLOURS, NAMES, chart
from repair_hf.analysis.report import Finding
from repair_hf.analysis.run_data import RunData

PANELS = {  # title -> (direction, column that is counted)
    "edited captions per image": ("i2t", "q_id"),
    "edited images per caption": ("t2i", "q_id"),
    "queries per wrong image": ("t2i", "fp_id"),
    "queries per wrong caption": ("i2t", "fp_id"),
}
HUBS = 10  # listed, of each modality


def distributions(data: RunData) -> list[Finding]:
    kept = data.kept
    counts = {title: kept[kept["direction"] == way][column].value_counts() for title, (way, column) in PANELS.items()}
    with chart(2.9, rows=2, columns=2) as (figure, panels):
        for axes, (title, found) in zip(panels.flat, counts.items(), strict=True):
            _histogram(axes, title, found, PANELS[title][0])
    rows = [(title, len(n), n.median(), n.mean(), n.max()) for title, n in counts.items() if len(n)]
    table = pd.DataFrame(rows, columns=["distribution", "items", "median", "mean", "most"])
    note = (
        "Items without a record are not counted. The two lower charts have a logarithmic scale: few hubs are wrong "
        "for many queries."
    )
    data = pd.concat(
        [n.rename_axis("id").rename("count").reset_index().assign(distribution=t) for t, n in counts.items()]
    )
    return [
        Finding("distributions", "Records per item", note, table, figure if len(table) else None, data),
        Finding("hubs", "Hubs", "The items that are the false positive of most queries.", _hubs(kept, counts)),
    ]


def _histogram(axes: Axes, title: str, counts: pd.Series, direction: str) -> None:
    axes.set_xlabel(title, fontsize=6.3)
    axes.set_ylabel(f"{title.split()[-1]}s", fontsize=7)
    if not len(counts):
        axes.text(0.5, 0.5, "no records", ha="center", transform=axes.transAxes)
        return
    edges = np.arange(0.5, counts.max() + 1.5) if counts.max() <= 60 else np.linspace(0.5, counts.max() + 0.5, 41)
    axes.hist(counts, bins=edges.tolist(), color=COLOURS[direction], edgecolor="white", linewidth=0.3)
    if title.startswith("queries"):
        axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))


def _hubs(kept: pd.DataFrame, counts: dict[str, pd.Series]) -> pd.DataFrame:
    rows = []
    for kind, title in (("image", "queries per wrong image"), ("caption", "queries per wrong caption")):
        texts = kept[kept["fp_text"].notna()].drop_duplicates("fp_id").set_index("fp_id")["fp_text"]
        rows += [(kind, name, int(n), texts.get(name, "")) for name, n in counts[title].head(HUBS).items()]
    return pd.DataFrame(rows, columns=["kind", "id", "queries", "caption"])


def candidates(data: RunData) -> Finding:
    """Cosine of the chosen candidate and of the others to their false positive."""
    kept = data.kept.dropna(subset=["edit_similarity", "candidate_similarities", "candidate"])
    rows, cells = [], {}
    for direction, group in kept.groupby("direction"):
        flat = group["candidate_similarities"].explode().astype(float).to_numpy()
        place = np.concatenate([np.arange(len(each)) for each in group["candidate_similarities"]])
        is_chosen = place == np.repeat(group["candidate"].to_numpy(), group["candidate_similarities"].map(len))
        chosen, others = flat[is_chosen], flat[~is_chosen & ~np.isnan(flat)]
        cells[direction] = chosen, others
        rows.append(
            (direction, len(group), chosen.mean(), others.mean() if len(others) else np.nan, int(np.isnan(flat).sum()))
        )
    note = (
        "Cosine to the false positive. The most similar candidate is chosen; the gap shows what several candidates "
        "bring. A candidate that failed or changed nothing has no cosine."
    )
    heads = ["direction", "records", "chosen, mean", "others, mean", "candidates without one"]
    table = pd.DataFrame(rows, columns=heads)
    if table.empty:
        return Finding("candidates", "Candidates", note)
    with chart(1.7, columns=len(cells)) as (figure, panels):
        for axes, (direction, (chosen, others)) in zip(np.atleast_1d(panels), cells.items(), strict=True):
            edges = np.linspace(min([*chosen, *others]), 1, 40)
            axes.hist(others, edges, density=True, color="#999999", label="others", alpha=0.8)
            axes.hist(chosen, edges, density=True, histtype="step", color=COLOURS[direction], lw=1.4, label="chosen")
            axes.set_title(NAMES[direction], loc="left", fontsize=7)
            axes.set_xlabel("cosine to the false positive", fontsize=7)
            axes.set_yticks([])
            axes.legend(loc="upper left", fontsize=6.5)
    return Finding("candidates", "Candidates", note, table, figure)
