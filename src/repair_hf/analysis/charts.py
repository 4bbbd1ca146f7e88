"""Charts: one look for all, one color per direction, readable at the width of a column.

The colors are Okabe and Ito's, which stay distinct for color-blind readers.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

logger = logging.getLogger(__name__)

INK, MUTED, PAPER, CARD, RULE = "#1f2933", "#5c6773", "#eef0f3", "#ffffff", "#d5dae0"
ROLES = {"q": "#4d5863", "gt": "#00704f", "fp": "#b04a00", "edit": "#00639b"}  # of text: a contrast of 4.5 on PAPER
COLUMN = 3.4  # inches: the width of a column in two-column papers
DPI = 220
COLORS = {"t2i": "#e69f00", "i2t": "#0072b2"}
NAMES = {"t2i": "text → image", "i2t": "image → text"}
# For letters that DejaVu Sans lacks; those that this machine has.
FALLBACKS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC", "Noto Sans KR", "WenQuanYi Zen Hei",
    "Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic",
    "Noto Sans Devanagari", "Noto Sans Thai", "Arial Unicode MS", "Noto Emoji",
)  # fmt: skip
FONTS = ["DejaVu Sans", *(name for name in FALLBACKS if name in fontManager.get_font_names())]
LOOK: dict[Any, Any] = {
    "font.family": FONTS,
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
    "svg.fonttype": "none",  # text stays text
    "image.composite_image": False,  # one image in an SVG each; a composite would have 72 dpi
}


@contextmanager
def chart(height: float = 2.1, *, rows: int = 1, columns: int = 1, width: float = COLUMN) -> Iterator[tuple]:
    """Make a figure; height and width are in inches.

    Yields:
        The figure and its panels: one `Axes`, or an array of them.
    """
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        yield figure, figure.subplots(rows, columns)


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as .png or .svg; equal figures give equal files.

    A PNG that lacks letters is a warning; an SVG keeps its text.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    with matplotlib.rc_context(LOOK | {"svg.hashsalt": "repair_hf"}), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(path, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    missing = {found[1] for each in caught if (found := re.match(r"Glyph (\d+)", str(each.message)))}
    if missing and kind == "png":
        letters = "".join(sorted(chr(int(number)) for number in missing)[:8])
        logger.warning("No font of this machine has %s: install a Noto Sans font of that script.", letters)
