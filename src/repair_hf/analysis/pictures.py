"""A contact sheet: records side by side, as a picture."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repair_hf.analysis.charts import LINE, WIDTH, Box, caption, fill, page, show, wrap, write
from repair_hf.analysis.pages import CARD, INK, MUTED, PAPER, ROLES, RULE
from repair_hf.analysis.record_sample import ROLE_NAMES, RecordSample, marked_texts
from repair_hf.records.columns import REASONS

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
