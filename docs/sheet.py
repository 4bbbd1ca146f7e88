"""Set records side by side in a picture, for README; `figures.py` draws it. One look for all pictures of the pages."""

from __future__ import annotations

import textwrap
import unicodedata
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
from matplotlib.offsetbox import AnnotationBbox, HPacker, TextArea, VPacker
from matplotlib.patches import Rectangle
from PIL import Image

from repair_hf.analysis.pages import CARD, INK, MUTED, PAPER, ROLES, RULE
from repair_hf.analysis.record_sample import ROLE_NAMES, RecordSample, Run, marked_texts
from repair_hf.records.columns import REASONS
from repair_hf.runtime.redaction import printable

COLUMN = 3.4  # inches: the width of a column in two-column papers
DPI = 220
LOOK: dict[Any, Any] = {
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


def save(figure: Figure, path: Path) -> None:
    """Write a figure as .png; equal figures give equal files."""
    with matplotlib.rc_context(LOOK):
        figure.savefig(path, dpi=DPI)


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


# Lengths and font sizes are in points.
MARGIN, PAD, GAP = 10, 7, 9
SMALL, NOTE, LABEL, HEADLINE, TITLE = 5.6, 6.2, 6.8, 10, 11.5
HEAD, TALL = 19, 82  # a cell's label, and its image or caption
NOTE_INDENT = 46


def contact_sheet(sample: RecordSample) -> Figure:
    """Draw records side by side: query, ground truth, false positive, edit; or why there is no edit."""
    bar, band = 32, 30
    width = WIDTH - 2 * MARGIN - 2 * PAD
    cards = {id(row): 2 * PAD + HEAD + TALL + _notes_height(row, width, most=3) for row in sample.rows}
    height = bar + band * len(sample.sections) + sum(cards.values()) + 6 * len(cards) + MARGIN
    with page(height, PAPER) as (figure, axes):
        fill(axes, (0, 0, WIDTH, bar), INK)
        write(axes, MARGIN, 9, sample.title, TITLE, "white", weight="bold")
        models = wrap(sample.provenance, NOTE, WIDTH / 2, 1)[0]
        write(axes, WIDTH - MARGIN, 12, models, NOTE, RULE, ha="right")
        y: float = bar
        for name, meaning, count, rows in sample.sections:
            write(axes, MARGIN, y + 12, name, HEADLINE, weight="bold")
            write(axes, MARGIN + 80, y + 14, meaning, 7, MUTED)
            write(axes, WIDTH - MARGIN, y + 14, count, 7, MUTED, ha="right")
            y += band
            for row in rows:
                fill(axes, (MARGIN, y, WIDTH - 2 * MARGIN, cards[id(row)]), CARD, edge=RULE)
                left, top = MARGIN + PAD, y + PAD
                _cells(axes, row, _side_by_side(left, top, width, 4, TALL))
                _notes(axes, left, top + HEAD + TALL, row, width, most=3)
                y += cards[id(row)] + 6
    return figure


def _side_by_side(left: float, top: float, width: float, count: int, tall: float) -> list[Box]:
    cell = (width - GAP * (count - 1)) / count
    return [(left + place * (cell + GAP), top, cell, HEAD + tall - 4) for place in range(count)]


def _cells(axes: Axes, row: dict[str, Any], boxes: list[Box]) -> None:
    """Draw query, ground truth, false positive and edit of a row, each into a box."""
    texts = marked_texts(row)
    for (role, name), box in zip(ROLE_NAMES.items(), boxes, strict=True):
        content = _label(axes, box, name, ROLES[role], _aside(row, role))
        if role == "edit" and "reason" in row:
            caption(axes, content, [("same", f"none: {row['detail'] or REASONS[row['reason']]}")], RULE)
        elif role in texts:
            caption(axes, content, texts[role], ROLES[role])
        elif (image := row.get(f"{role}_image")) is None:
            caption(axes, content, [("same", f"left out of these records: {row.get(f'{role}_id')}")], RULE)
        else:
            fill(axes, content, PAPER)
            show(axes, content, image)


def _label(axes: Axes, box: Box, name: str, color: str, aside: str) -> Box:
    """Write a cell's label, and return the rest of its box."""
    x, y, width, height = box
    write(axes, x, y, name, LABEL, color, weight="bold")
    write(axes, x, y + 9, wrap(aside, SMALL, width, 1)[0], SMALL, MUTED)
    return x, y + HEAD, width, height - HEAD


def _aside(row: dict[str, Any], role: str) -> str:
    if role == "q":
        return str(row["q_id"])
    if role == "edit":
        return row["reason"] if "reason" in row else f"cos to false positive {_number(row['edit_similarity'])}"
    best = "best " if role == "gt" and row["direction"] == "i2t" else ""  # the best caption may not be the shown one
    return f"{best}rank {row[f'{role}_rank']} · cos {_number(row[f'{role}_score'])}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _note_lines(row: dict[str, Any], width: float, most: int) -> dict[str, list[str]]:
    notes = {"audit": row["fp_reason"], "instruction": row["edit_instruction"]}
    return {name: wrap(text or "not on record", NOTE, width - NOTE_INDENT, most) for name, text in notes.items()}


def _notes_height(row: dict[str, Any], width: float, most: int) -> float:
    return sum(len(lines) * NOTE * LINE + 2 for lines in _note_lines(row, width, most).values())


def _notes(axes: Axes, x: float, y: float, row: dict[str, Any], width: float, most: int) -> None:
    for name, lines in _note_lines(row, width, most).items():
        write(axes, x, y, name, NOTE, MUTED)
        y = write(axes, x + NOTE_INDENT, y, lines, NOTE) + 2
