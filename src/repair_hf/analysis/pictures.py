"""Pictures: a contact sheet, a record with what its edit changed, a 3x3 grid before and after training."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from datasets import Dataset
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from repair_hf.analysis.charts import (
    COLORS,
    LINE,
    NAMES,
    WIDTH,
    Box,
    caption,
    chart,
    fill,
    fit,
    page,
    show,
    wrap,
    write,
)
from repair_hf.analysis.example_grid import ExampleGrid, right_answers
from repair_hf.analysis.pages import CARD, INK, MUTED, PAPER, ROLES, RULE
from repair_hf.analysis.record_sample import ROLE_NAMES, RecordSample, marked_texts
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.records.columns import MODALITIES, REASONS
from repair_hf.runtime.options import UserError

# Lengths and font sizes are in points.
MARGIN, PAD, GAP = 10, 7, 9
SMALL, NOTE, LABEL, HEADLINE, TITLE = 5.6, 6.2, 6.8, 10, 11.5
HEAD, TALL = 19, 82  # a cell's label, and its image or caption
NOTE_INDENT = 46
COLUMN, ROW, CAPTIONS = 52, 44, 128  # a grid's column and row, and the width of its captions
CHANGED = 0.1  # of the range of a color channel; smaller differences are noise of the image codec
IMAGE_SLOTS = ("anchor", "fits the 2nd caption", "false positive")
TEXT_SLOTS = ("anchor", "false positive", "fits the 3rd image")


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


def case_figure(record: dict[str, Any]) -> Figure:
    """Draw one record with what its edit changed: the words of a caption, or the pixels of an image.

    Raises:
        UserError: If the record lacks images.
    """
    kinds = MODALITIES[record["direction"]]
    if lacking := [role for role, kind in kinds.items() if kind == "image" and record[f"{role}_image"] is None]:
        raise UserError(f"Record {record['record_id']} lacks the image of {', '.join(lacking)}; give --pairs.")
    width, is_image = WIDTH - 2 * MARGIN, record["direction"] == "t2i"
    tall = TALL if is_image else 1.4 * TALL
    with page(2 * MARGIN + HEAD + tall + _notes_height(record, width, most=99)) as (figure, axes):
        boxes = _side_by_side(MARGIN, MARGIN, width, 5 if is_image else 4, tall)
        _cells(axes, record, boxes[:4])
        if is_image:
            heat = changed_pixels(record["fp_image"], record["edit_image"])
            content = _label(axes, boxes[4], "changed pixels", INK, f"{np.mean(heat > CHANGED):.0%} of the image")
            colors = matplotlib.colormaps["inferno"](heat, bytes=True)[..., :3]
            show(axes, content, Image.fromarray(colors), "nearest")
        _notes(axes, MARGIN, MARGIN + HEAD + tall, record, width, most=99)
    return figure


def changed_pixels(before: Image.Image, after: Image.Image) -> np.ndarray:
    """How far each pixel's color moved, from 0 to 1: the largest difference of its three channels.

    Shape:
        Returns (height, width) of `before`; `after` is resized to it.
    """
    one = np.asarray(before.convert("RGB"), float)
    other = np.asarray(after.convert("RGB").resize(before.size, Image.Resampling.BICUBIC), float)
    return np.abs(one - other).max(axis=2) / 255


def grid_figure(grid: ExampleGrid, before: np.ndarray, after: np.ndarray) -> Figure:
    """Draw a 3x3 grid with its cosines before and after training, and its edit instructions if it has any.

    Shape:
        before, after: (3 texts, 3 images); true pairs on the diagonal.
    """
    width = WIDTH - 2 * MARGIN
    legend = (
        "Cosines; true pairs are framed. ✓: the true pair is the best of its row (caption → image) or column "
        "(image → caption); a tie counts as wrong."
    )
    names = {"i2t": "edit of the caption", "t2i": "edit of the image"}
    notes = [(names[way], wrap(text or "not on record", NOTE, width, 3)) for way, text in grid.instructions.items()]
    top, step = 32 + COLUMN, NOTE * LINE  # upper edge of the matrices
    height = top + 3 * ROW + 20 + 2 * step + sum((1 + len(lines)) * step + 3 for _, lines in notes) + MARGIN
    bounds = float(min(before.min(), after.min())), float(max(before.max(), after.max()))  # one scale for both
    with page(height) as (figure, axes):
        for row, (text, slot) in enumerate(zip(grid.texts, TEXT_SLOTS, strict=True)):
            write(axes, MARGIN, top + row * ROW, slot, NOTE, _slot_color(slot), weight="bold")
            lines, size = fit(text, (7.5, 6.5, 5.5), CAPTIONS, ROW - 12)
            write(axes, MARGIN, top + row * ROW + 9, lines, size)
        panel = 3 * COLUMN + 16
        left = WIDTH - MARGIN - 2 * panel - GAP
        _panel(axes, left, "before training", grid, before, bounds)
        _panel(axes, left + panel + GAP, "after training", grid, after, bounds)
        y = write(axes, MARGIN, top + 3 * ROW + 18, wrap(legend, NOTE, width, 2), NOTE, MUTED) + 3
        for name, lines in notes:
            y = write(axes, MARGIN, write(axes, MARGIN, y, name, NOTE, weight="bold"), lines, NOTE) + 3
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


def _panel(
    axes: Axes, left: float, name: str, grid: ExampleGrid, cosines: np.ndarray, bounds: tuple[float, float]
) -> None:
    """Draw one matrix below its images, with a mark for each answer: captions at the right, images at the foot."""
    by_text, by_image = right_answers(cosines)
    top, (low, high) = 32 + COLUMN, bounds
    write(axes, left, 5, name, 8.5, weight="bold")
    score = f"{by_text.sum() + by_image.sum()} of 6 right"
    write(axes, left + 3 * COLUMN, 6.5, score, 6.5, MUTED, ha="right")
    for column, (image, slot) in enumerate(zip(grid.images, IMAGE_SLOTS, strict=True)):
        x = left + column * COLUMN
        show(axes, (x + 2, 19, COLUMN - 4, COLUMN - 2), image)
        write(axes, x + COLUMN / 2, COLUMN + 21, slot, 4.6, _slot_color(slot), weight="bold", ha="center")
    for row, column in np.ndindex(3, 3):
        x, y, value = left + column * COLUMN, top + row * ROW, float(cosines[row, column])
        shade = (value - low) / max(high - low, 1e-9)
        ink, is_true = "white" if shade < 0.55 else "black", row == column
        fill(axes, (x + 0.7, y + 0.7, COLUMN - 1.4, ROW - 1.4), matplotlib.colormaps["cividis"](shade))
        if is_true:
            fill(axes, (x + 2.7, y + 2.7, COLUMN - 5.4, ROW - 5.4), "none", edge=ink)
        weight = "bold" if is_true else "normal"
        write(axes, x + COLUMN / 2, y + ROW / 2 - 5, f"{value:.3f}", 9, ink, weight=weight, ha="center")
    for place in range(3):
        _mark(axes, left + 3 * COLUMN + 8, top + place * ROW + ROW / 2 - 5, by_text[place])
        _mark(axes, left + place * COLUMN + COLUMN / 2, top + 3 * ROW + 3, by_image[place])


def _slot_color(name: str) -> str:
    return ROLES["fp"] if name == "false positive" else MUTED


def _mark(axes: Axes, x: float, y: float, is_right: bool) -> None:
    sign, role = ("✓", "gt") if is_right else ("✗", "fp")
    write(axes, x, y, sign, 9, ROLES[role], weight="bold", ha="center")


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
