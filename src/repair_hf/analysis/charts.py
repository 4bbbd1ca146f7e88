"""Charts: one look for all, one colour per direction, readable at the width of a column.

In:  numbers.
Out: matplotlib figures, and their files: PNG for pages, SVG for papers.

The colours are those of Okabe and Ito, which every kind of colour vision can tell apart; bars of two directions differ by hatching too,
so that a print in grey still tells them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from repair_hf.analysis.drawing import INK, MUTED, RULE

COLUMN = 3.4  # inches: the width of a column in two-column papers
DPI = 220
COLOURS = {"t2i": "#e69f00", "i2t": "#0072b2"}
HATCHES = {"t2i": "//", "i2t": ""}
NAMES = {"t2i": "text → image", "i2t": "image → text"}
LOOK = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",  # letters stay letters
    "hatch.linewidth": 0.5,
}


@contextmanager
def chart(height: float = 2.1, *, rows: int = 1, columns: int = 1, width: float = COLUMN) -> Iterator[tuple]:
    """A figure of so many panels, laid out when the block ends.

    Args:
        height: Inches.
        rows: Of panels.
        columns: Of panels.
        width: Inches.

    Yields:
        The figure and its panels: one `Axes`, or an array of them.
    """
    with matplotlib.rc_context(LOOK):
        figure = Figure(
            figsize=(width, height), dpi=DPI, layout="constrained"
        )  # letters are measured at the size they get
        yield figure, figure.subplots(rows, columns)


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as .png or .svg; equal figures give equal files."""
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    with matplotlib.rc_context(LOOK | {"svg.hashsalt": "repair_hf"}):
        figure.savefig(path, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)


def png(figure: Figure) -> bytes:
    """A figure's PNG file, of few colours, so that a page of many stays light."""
    from PIL import Image

    file, small = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context(LOOK):
        figure.savefig(file, format="png", dpi=DPI)
    Image.open(file).convert("RGB").quantize(128).save(small, "PNG", optimize=True)
    return small.getvalue()


def grouped_bars(axes: Axes, labels: Sequence[str], values: Mapping[str, Sequence[float]], form: str) -> None:
    """Horizontal bars, one of each direction per label, with their numbers.

    Args:
        axes: Where.
        labels: From the top.
        values: Direction -> a number per label; NaN has no bar.
        form: How the numbers are written, such as `{:.0%}`.
    """
    thick = 0.8 / max(len(values), 1)
    top = np.nanmax([np.nanmax([*numbers, 0]) for numbers in values.values()])
    for place, (direction, numbers) in enumerate(values.items()):
        at = np.arange(len(labels)) + (place - (len(values) - 1) / 2) * thick
        axes.barh(
            at,
            np.nan_to_num(numbers),
            thick * 0.9,
            color=COLOURS[direction],
            hatch=HATCHES[direction],
            edgecolor="white",
            label=NAMES[direction],
        )
        for y, value in zip(at, numbers, strict=True):
            if not np.isnan(value):
                axes.text(value + 0.01 * top, y, form.format(value), va="center", fontsize=6.5)
    axes.set_yticks(np.arange(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * top or 1)
    axes.xaxis.set_major_locator(MaxNLocator(5, prune="upper"))
    axes.grid(False, axis="y")


def legend(figure: Figure) -> None:
    """Say above a figure which direction has which colour."""
    marks = [Patch(facecolor=COLOURS[way], hatch=HATCHES[way], edgecolor="white", label=NAMES[way]) for way in NAMES]
    figure.legend(handles=marks, loc="outside upper right", ncols=2, fontsize=7)


def whole_counts(axes: Axes) -> None:
    """Mark the horizontal axis at whole numbers alone."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
