"""Draw what a blend of base and tuned model gains, against what it keeps of the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repair_hf.analysis.charts import COLORS, chart, save
from repair_hf.analysis.tables import SIDES


def draw_blends(
    metrics: Mapping[str, Mapping[str, Any]], weights: Mapping[str, float], also: Sequence[str], path: Path
) -> bool:
    """Draw R@1 on the pairs against R@1 on each of the further pairs, a point per weight; the base is 0.

    Args:
        metrics: Of the base and of each blend, by short name.
        weights: Of each blend.
        also: Names of the further pairs.
        path: File to write, SVG or PNG.

    Returns:
        Whether there are further pairs to draw.
    """
    if not also:
        return False
    base = next(name for name in metrics if name not in weights)
    points = {0.0: metrics[base]} | {weights[name]: metrics[name] for name in metrics if name in weights}
    with chart(2.6, columns=len(also), width=3.4 * len(also)) as (figure, panels):
        for other, axes in zip(also, [panels] if len(also) == 1 else panels, strict=True):
            for side, title in SIDES.items():
                gained = [100 * one[f"{side}_R@1"] for one in points.values()]
                kept = [100 * one[f"{other}_{side}_R@1"] for one in points.values()]
                axes.plot(gained, kept, marker="o", markersize=3, color=COLORS[side], label=title)
                for weight, x, y in zip(points, gained, kept, strict=True):
                    axes.annotate(f"{weight:g}", (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6)
            axes.set(xlabel="R@1 (%)", ylabel=f"R@1 on {other} (%)", title="Weight of the tuned model")
            axes.legend()
        save(figure, path)
    return True
