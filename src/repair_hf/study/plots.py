"""The figures of a study: what each method gains, and the effect of more samples."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from repair_hf.analysis.charts import COLORS, MUTED, NAMES, chart
from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import NONE
from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.study.cells import Measured
from repair_hf.study.cost_tables import R1, frame
from repair_hf.study.running import PLAIN, Results
from repair_hf.study.tables import name_of_point

PANELS = ("equal steps", "equal compute")
LINES = ("-", "--", ":", "-.")
# Okabe and Ito's, distinguishable with every kind of color vision.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442", "#000000")


def draw_gains(gains: Finding) -> Finding:
    """Add a figure to the table of gains: each method's gain with its interval, one panel for each comparison."""
    if gains.data is None or gains.data.empty:
        return gains
    methods = list(dict.fromkeys(gains.data["method"]))
    with chart(0.9 + 0.24 * len(methods), columns=2, width=6.6) as (figure, panels):
        for axes, against in zip(panels, PANELS, strict=True):
            for place, side in enumerate(DIRECTIONS):
                rows = gains.data[(gains.data["against"] == against) & (gains.data["metric"] == f"{side}_R@1")]
                found = 100 * rows.set_index("method").loc[methods, ["difference", "low", "high"]].to_numpy()  # (n, 3)
                at, (middle, low, high) = np.arange(len(methods)) + 0.3 * (place - 0.5), found.T
                look = {"fmt": "os"[place], "ms": 3, "lw": 1.2, "color": COLORS[side], "label": NAMES[side]}
                axes.errorbar(middle, at, xerr=[middle - low, high - middle], **look)
            axes.axvline(0, color=MUTED, lw=0.8)
            axes.set(title=f"against plain training, {against}", xlabel="points of R@1, 95% interval")
            axes.set_yticks(np.arange(len(methods)), methods if against == PANELS[0] else [])
            axes.set_ylim(len(methods) - 0.5, -0.5)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=2, fontsize=7)
    return replace(gains, figure=figure)


def draw_sweep(results: Results) -> Finding | None:
    """Plot and tabulate R@1 over the number of each method's samples, if the study has shares or sample sizes."""
    if not results.sweep:
        return None
    sizes = {
        (name, point): point if point > 1 else point * results.rows[name].cost["made"]
        for name, found in results.sweep.items()
        for point in found
    }
    with chart(max(2.6, 0.4 + 0.14 * len(results.sweep)), columns=2, width=6.6) as (figure, panels):
        for axes, metric in zip(panels, R1, strict=True):
            axes.axhline(_mean(results.rows[PLAIN].cells, metric), color=MUTED, lw=0.8, label=PLAIN)
            for place, (name, found) in enumerate(results.sweep.items()):
                drawn = sorted((sizes[name, point], _mean(cells, metric)) for point, cells in found.items())
                look = {"color": PALETTE[place % len(PALETTE)], "ls": LINES[place // len(PALETTE) % len(LINES)]}
                axes.plot(*zip(*drawn, strict=True), marker="o", ms=2.5, lw=1.1, label=name, **look)
            axes.set(title=NAMES[metric[:3]], xlabel="number of samples", ylabel="R@1 in %")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize=6)
    points = sorted({point for _, point in sizes} - {1.0}) + [1.0]
    rows = {
        name: [
            " / ".join(f"{_mean(found[point], metric):.1f}" for metric in R1) if point in found else NONE
            for point in points
        ]
        for name, found in results.sweep.items()
    }
    data = [
        {"method": name, "samples": round(sizes[name, point]), "seed": cell.cell.seed}
        | {metric: cell.metrics[metric] for metric in R1}
        for name, found in results.sweep.items()
        for point, cells in found.items()
        for cell in cells
    ]
    note = (
        "R@1 I2T / T2I in %, mean over seeds, by the number of each method's samples. A larger number contains every "
        "smaller one."
    )
    table = frame(["method", *map(name_of_point, points)], rows)
    return Finding("sweep", "How many samples", note, table, figure, data=pd.DataFrame(data))


def _mean(cells: Sequence[Measured], metric: str) -> float:
    return 100 * statistics.fmean(cell.metrics[metric] for cell in cells)
