"""Charts and pages of paper: one look for all, one color per direction, readable at the width of a column.

The colors are Okabe and Ito's, which stay distinct for color-blind readers.
"""

from __future__ import annotations

import logging
import re
import textwrap
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.offsetbox import AnnotationBbox, HPacker, TextArea, VPacker
from matplotlib.patches import Rectangle
from PIL import Image

from repair_hf.analysis.pages import CARD, INK, MUTED, ROLES, RULE
from repair_hf.analysis.record_sample import Run
from repair_hf.runtime.redaction import printable

logger = logging.getLogger(__name__)

COLUMN = 3.4  # inches: the width of a column in two-column papers
DPI = 220
COLORS = {"t2i": "#e69f00", "i2t": "#0072b2"}
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


WIDTH = 504  # both columns of a paper
CAPTION_SIZES = (9.0, 8.0, 7.0, 6.0)
LINE = 1.3  # height of a line, in font sizes
EM = 0.58  # width that is assumed of a small letter, in font sizes: matplotlib measures only when it draws
SIDE = 480  # pixels of an image's longest side
LOOKS = {"same": (INK, "normal"), "out": (ROLES["fp"], "bold"), "in": (ROLES["edit"], "bold")}

Box = tuple[float, float, float, float]  # left, top, width, height


@contextmanager
def page(height: float, color: str = CARD) -> Iterator[tuple[Figure, Axes]]:
    """Make a figure of `WIDTH` and a height; its axes count points from the upper left corner."""
    with chart(height / 72, width=WIDTH / 72) as (figure, axes):
        figure.set_layout_engine("none")
        figure.set_facecolor(color)
        axes.set_position((0, 0, 1, 1))
        axes.axis("off")
        axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        yield figure, axes


def write(
    axes: Axes, x: float, y: float, lines: str | Sequence[str], size: float, color: str = INK, **look: Any
) -> float:
    """Write lines below a point, and return where the next line begins; a dollar sign is a letter, not a formula."""
    for line in [lines] if isinstance(lines, str) else lines:
        axes.text(x, y + 0.93 * size, printable(line), size=size, color=color, parse_math=False, **look)
        y += LINE * size
    return y


def fill(axes: Axes, box: Box, color: Any, *, edge: Any = None) -> None:
    x, y, width, height = box
    axes.add_patch(Rectangle((x, y), width, height, facecolor=color, edgecolor=edge, lw=0.6 if edge else 0))


def show(axes: Axes, box: Box, image: Image.Image, interpolation: Literal["auto", "nearest"] = "auto") -> None:
    """Draw the whole image, as large as the box allows."""
    x, y, width, height = box
    small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    scale = min(width / small.width, height / small.height)
    across, down = small.width * scale, small.height * scale
    left, top = x + (width - across) / 2, y + (height - down) / 2
    extent = (left, left + across, top + down, top)
    axes.imshow(np.asarray(small), extent=extent, aspect="auto", interpolation=interpolation, zorder=1)


def wrap(text: str, size: float, width: float, most: int) -> list[str]:
    """Break a text into at most `most` lines; what does not fit ends in an ellipsis."""
    letters = max(int(width / (EM * size * np.mean([_letter_width(letter) for letter in text or " "]))), 4)
    if most == 1:
        line = " ".join(text.split())
        return [line if len(line) <= letters else f"{line[: letters - 1]}…"]
    return textwrap.wrap(text, letters, max_lines=most, placeholder=" …", break_on_hyphens=False) or [""]


def _letter_width(letter: str) -> float:
    return 1.8 if unicodedata.east_asian_width(letter) in "FW" else 1.3 if letter.isupper() else 1.0


def fit(text: str, sizes: Sequence[float], width: float, height: float) -> tuple[list[str], float]:
    """Break a text at the first of `sizes` at which all of it fits a box; the last size cuts it."""
    for size in sizes:
        lines = wrap(text, size, width, max(int(height / (size * LINE)), 1))
        if not lines[-1].endswith("…"):
            break
    return lines, size


def caption(axes: Axes, box: Box, runs: Sequence[Run], color: str) -> None:
    """Write a caption with its changes marked into the middle of a tinted box; a long one is smaller."""
    x, y, width, height = box
    fill(axes, box, 1 - 0.07 * (1 - np.array(to_rgb(color))))
    fill(axes, (x, y, 1.5, height), color)
    lines, size = fit(" ".join(words for _, words in runs), CAPTION_SIZES, width - 13, height - 6)
    rows: list[Artist] = [
        HPacker(children=[_text_area(words, size, *LOOKS[kind]) for kind, words in parts], pad=0, sep=0.3 * size)
        for parts in _marked(lines, runs)
    ]
    block = VPacker(children=rows, pad=0, sep=0.15 * size)
    axes.add_artist(AnnotationBbox(block, (x + 8, y + height / 2), box_alignment=(0, 0.5), frameon=False, pad=0))


def _marked(lines: Sequence[str], runs: Sequence[Run]) -> Iterator[list[Run]]:
    """Split each line into runs again. The lines hold the letters of the runs, and perhaps an ellipsis."""
    kinds = iter([kind for kind, words in runs for letter in words if not letter.isspace()])
    for line in lines:
        marked = [([next(kinds, "same") for _ in word][0], word) for word in line.split()]
        parts = [
            (kind, " ".join(word for _, word in part)) for kind, part in groupby(marked, key=lambda each: each[0])
        ]
        yield parts or [("same", "")]


def _text_area(text: str, size: float, color: str, weight: str) -> TextArea:
    return TextArea(printable(text), textprops={"size": size, "color": color, "weight": weight, "parse_math": False})
