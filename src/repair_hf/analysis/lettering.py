"""Lettering: captions inside matplotlib figures, broken into lines, with what an edit changed set apart.

In:  runs of `repair_hf.analysis.differences`, a panel.
Out: words on the panel, in its font and at its width, as letters also in SVG.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg

from repair_hf.analysis.differences import Run
from repair_hf.analysis.drawing import INK, ROLES

LEADING = 1.35
STYLES = {"same": (INK, "normal"), "out": (ROLES["fp"], "bold"), "in": (ROLES["edit"], "bold")}


def write(axes: Axes, x: float, y: float, runs: Sequence[Run], *, size: float, width: float = 1.0) -> float:
    """Write words from a panel's upper left on; give back where the next line would begin.

    Args:
        axes: The panel; its size must be final.
        x: Left edge, as a share of the panel's width.
        y: Top, as a share of its height.
        runs: Words of one kind each: `same`, `out` (struck through) and `in`.
        size: In points.
        width: Where lines break, as a share of the panel's width.
    """
    renderer = FigureCanvasAgg(axes.figure).get_renderer()
    box = axes.get_window_extent(renderer)
    points = size * axes.figure.dpi / 72
    line, space = LEADING * points / box.height, 0.3 * points / box.width
    left = x
    for kind, text in runs:
        colour, weight = STYLES[kind]
        for word in text.split():
            # parse_math: a caption's dollar signs are letters
            label = axes.text(
                left,
                y,
                word,
                size=size,
                color=colour,
                weight=weight,
                va="top",
                transform=axes.transAxes,
                parse_math=False,
            )
            length = label.get_window_extent(renderer).width / box.width
            if left > x and left + length > x + width:
                left, y = x, y - line
                label.set_position((left, y))
            if kind == "out":
                middle = y - 0.55 * points / box.height
                axes.plot(
                    [left, left + length],
                    [middle, middle],
                    color=colour,
                    lw=0.9,
                    transform=axes.transAxes,
                    clip_on=False,
                )
            left += length + space
    return y - line
