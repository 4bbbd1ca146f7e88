"""Pictures: a contact sheet, a record with what its edit changed, a 3x3 grid before and after training."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from repair_hf.analysis.charts import CARD, INK, MUTED, PAPER, ROLES, RULE
from repair_hf.analysis.example_grid import ExampleGrid, right_answers
from repair_hf.analysis.record_sample import ROLE_NAMES, RecordSample
from repair_hf.analysis.sheet import WIDTH, Box, Sheet, open_sheet
from repair_hf.analysis.typesetting import (
    LEADING,
    Run,
    Word,
    compare,
    fit_lines,
    line_width,
    marked_words,
    set_lines,
    words,
)
from repair_hf.records.columns import MODALITIES, REASONS
from repair_hf.runtime.options import UserError

# Lengths and font sizes are in points.
MARGIN, PAD, GAP = 10, 7, 9
SMALL, NOTE, LABEL, TITLE = 5.6, 6.2, 6.8, 11.5
HEAD, TALL = 19, 82  # a cell's label, and its image or caption
NOTE_INDENT = 46
CHANGED = 0.1  # of the range of a colour channel; smaller differences are noise of the image codec
COLUMN, ROW, CAPTIONS = 52, 44, 128  # a grid's column and row, and the width of its captions
IMAGE_SLOTS = ("anchor", "fits the 2nd caption", "false positive")
TEXT_SLOTS = ("anchor", "false positive", "fits the 3rd image")


def contact_sheet(sample: RecordSample) -> Figure:
    """Draw records side by side: query, ground truth, false positive, edit; or why there is no edit."""
    bar, band = 32, 30
    width = WIDTH - 2 * MARGIN - 2 * PAD
    cards = {id(row): 2 * PAD + HEAD + TALL + _notes_height(row, width, most=2) for row in sample.rows}
    height = bar + band * len(sample.sections) + sum(cards.values()) + 6 * len(cards) + MARGIN
    with open_sheet(height, PAPER) as sheet:
        sheet.fill((0, 0, WIDTH, bar), INK)
        title = words(sample.title, "white", bold=True)
        sheet.write(MARGIN, 9, [title], TITLE)
        room = WIDTH - 3 * MARGIN - line_width(title, TITLE)
        sheet.write_right(WIDTH - MARGIN, 13, set_lines(words(sample.provenance, RULE), NOTE, room, 1)[0], NOTE)
        y: float = bar
        for name, meaning, count, rows in sample.sections:
            headline = words(name, bold=True)
            sheet.write(MARGIN, y + 12, [headline], 10)
            sheet.write(MARGIN + line_width(headline, 10) + 8, y + 14.5, [words(meaning, MUTED)], 7)
            sheet.write_right(WIDTH - MARGIN, y + 14.5, words(count, MUTED), 7)
            y += band
            for row in rows:
                sheet.fill((MARGIN, y, WIDTH - 2 * MARGIN, cards[id(row)]), CARD, edge=RULE)
                left, top = MARGIN + PAD, y + PAD
                _cells(sheet, row, _side_by_side(left, top, width, 4))
                _notes(sheet, left, top + HEAD + TALL, row, width, most=2)
                y += cards[id(row)] + 6
    return sheet.figure


def case_figure(record: dict[str, Any]) -> Figure:
    """Draw one record with what its edit changed: the words of a caption, or the pixels of an image.

    Raises:
        UserError: If the record lacks images.
    """
    kinds = MODALITIES[record["direction"]]
    if lacking := [role for role, kind in kinds.items() if kind == "image" and record[f"{role}_image"] is None]:
        raise UserError(f"Record {record['record_id']} lacks the image of {', '.join(lacking)}; give --pairs.")
    width = WIDTH - 2 * MARGIN
    tall = TALL if record["direction"] == "t2i" else 130
    with open_sheet(2 * MARGIN + HEAD + tall + _notes_height(record, width, most=99)) as sheet:
        if record["direction"] == "t2i":
            *boxes, last = _side_by_side(MARGIN, MARGIN, width, 5)
            heat = changed_pixels(record["fp_image"], record["edit_image"])
            share = f"{np.mean(heat > CHANGED):.0%} of the image"
            content = _label(sheet, last, words("changed pixels", bold=True), share)
            sheet.show(content, _coloured(heat, "inferno"), Image.Resampling.NEAREST)
        else:
            left, step = 135, (HEAD + tall) / 3
            beside = [(left, MARGIN + step * k, WIDTH - MARGIN - left, step - 4) for k in range(3)]
            boxes = [(MARGIN, MARGIN, left - MARGIN - GAP, HEAD + tall - 4), *beside]
        _cells(sheet, record, boxes)
        _notes(sheet, MARGIN, MARGIN + HEAD + tall, record, width, most=99)
    return sheet.figure


def changed_pixels(before: Image.Image, after: Image.Image) -> np.ndarray:
    """How far each pixel's colour moved, from 0 to 1: the largest difference of its three channels.

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
    if not (len(grid.images) == len(grid.texts) == 3 and before.shape == after.shape == (3, 3)):
        raise ValueError(
            "A grid has 3 images, 3 texts and two matrices of shape (3, 3); got "
            f"{len(grid.images)}, {len(grid.texts)}, {before.shape} and {after.shape}."
        )
    width = WIDTH - 2 * MARGIN
    names = {"i2t": "edit of the caption", "t2i": "edit of the image"}
    notes = [
        ([words(names[way], bold=True)], set_lines(words(text or "not on record"), NOTE, width, 3))
        for way, text in grid.instructions.items()
    ]
    top = 32 + COLUMN  # upper edge of the matrices
    height = top + 3 * ROW + 36 + sum((1 + len(lines)) * NOTE * LEADING + 3 for _, lines in notes) + MARGIN
    both = np.stack([before, after])
    shades = (both - both.min()) / max(np.ptp(both), 1e-9)  # one scale for both
    with open_sheet(height) as sheet:
        for row, (text, slot) in enumerate(zip(grid.texts, TEXT_SLOTS, strict=True)):
            upper = top + row * ROW
            sheet.write(MARGIN, upper, [_slot(slot)], NOTE)
            lines, size = fit_lines(words(text), (7.5, 6.5, 5.5), CAPTIONS, ROW - 12)
            sheet.write(MARGIN, upper + 9, lines, size)
        panel = 3 * COLUMN + 16
        left = WIDTH - MARGIN - 2 * panel - GAP
        _panel(sheet, left, "before training", grid, before, shades[0])
        _panel(sheet, left + panel + GAP, "after training", grid, after, shades[1])
        legend = (
            "Cosines; true pairs are framed. ✓: the true pair is the best of its row (caption → image) or column "
            "(image → caption); a tie counts as wrong."
        )
        y = sheet.write(MARGIN, top + 3 * ROW + 18, set_lines(words(legend, MUTED), NOTE, width, 2), NOTE) + 3
        for name, lines in notes:
            y = sheet.write(MARGIN, sheet.write(MARGIN, y, name, NOTE), lines, NOTE) + 3
    return sheet.figure


def _side_by_side(left: float, top: float, width: float, count: int) -> list[Box]:
    cell = (width - GAP * (count - 1)) / count
    return [(left + place * (cell + GAP), top, cell, HEAD + TALL - 4) for place in range(count)]


def _cells(sheet: Sheet, row: dict[str, Any], boxes: list[Box]) -> None:
    """Draw query, ground truth, false positive and edit of a row, each into a box."""
    kinds = MODALITIES[row["direction"]]
    texts: dict[str, list[Run]] = {role: [("same", row.get(f"{role}_text") or "")] for role in kinds}
    if kinds["edit"] == "text" and "reason" not in row:
        texts["fp"], texts["edit"] = compare(row["fp_text"], row["edit_text"])
    for (role, name), box in zip(ROLE_NAMES.items(), boxes, strict=True):
        content = _label(sheet, box, words(name, ROLES[role], bold=True), _aside(row, role))
        if role == "edit" and "reason" in row:
            sheet.caption(content, words(f"none: {row['detail'] or REASONS[row['reason']]}", MUTED), RULE)
        elif kinds[role] == "text":
            sheet.caption(content, marked_words(texts[role]), ROLES[role])
        elif (image := row.get(f"{role}_image")) is None:
            sheet.caption(content, words(f"left out of these records: {row.get(f'{role}_id')}", MUTED), RULE)
        else:
            sheet.fill(content, PAPER)
            sheet.show(content, image)


def _label(sheet: Sheet, box: Box, name: list[Word], aside: str) -> Box:
    """Write a cell's label, and return the rest of its box."""
    x, y, width, height = box
    sheet.write(x, y, [name], LABEL)
    sheet.write(x, y + 9, set_lines(words(aside, MUTED), SMALL, width, 1), SMALL)
    return x, y + HEAD, width, height - HEAD


def _aside(row: dict[str, Any], role: str) -> str:
    if role == "q":
        return str(row["q_id"])
    if role == "edit":
        return row["reason"] if "reason" in row else f"cos to the false positive {_number(row['edit_similarity'])}"
    best = "best " if role == "gt" and row["direction"] == "i2t" else ""  # the best caption may not be the shown one
    return f"{best}rank {row[f'{role}_rank']} · cos {_number(row[f'{role}_score'])}"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _note_lines(row: dict[str, Any], width: float, most: int) -> dict[str, list[list[Word]]]:
    notes = {"audit": row["fp_reason"], "instruction": row["edit_instruction"]}
    return {
        name: set_lines(words(text or "not on record"), NOTE, width - NOTE_INDENT, most)
        for name, text in notes.items()
    }


def _notes_height(row: dict[str, Any], width: float, most: int) -> float:
    return sum(len(lines) * NOTE * LEADING + 2 for lines in _note_lines(row, width, most).values())


def _notes(sheet: Sheet, x: float, y: float, row: dict[str, Any], width: float, most: int) -> None:
    for name, lines in _note_lines(row, width, most).items():
        sheet.write(x, y, [words(name, MUTED)], NOTE)
        y = sheet.write(x + NOTE_INDENT, y, lines, NOTE) + 2


def _panel(sheet: Sheet, left: float, name: str, grid: ExampleGrid, cosines: np.ndarray, shades: np.ndarray) -> None:
    """Draw one matrix below its images, with a mark for each answer: captions at the right, images at the foot."""
    by_text, by_image = right_answers(cosines)
    sheet.write(left, 5, [words(name, bold=True)], 8.5)
    sheet.write_right(left + 3 * COLUMN, 6.5, words(f"{by_text.sum() + by_image.sum()} of 6 right", MUTED), 6.5)
    for column, (image, slot) in enumerate(zip(grid.images, IMAGE_SLOTS, strict=True)):
        x = left + column * COLUMN
        sheet.show((x + 2, 19, COLUMN - 4, COLUMN - 2), image)
        sheet.write(x + (COLUMN - line_width(_slot(slot), 4.6)) / 2, COLUMN + 21, [_slot(slot)], 4.6)
    top = 32 + COLUMN
    for row, column in np.ndindex(3, 3):
        box = (left + column * COLUMN + 0.7, top + row * ROW + 0.7, COLUMN - 1.4, ROW - 1.4)
        _matrix_cell(sheet, box, float(cosines[row, column]), float(shades[row, column]), is_true=row == column)
    for place in range(3):
        sheet.write(left + 3 * COLUMN + 4, top + place * ROW + ROW / 2 - 6, [[_mark(by_text[place])]], 9)
        sheet.write(left + place * COLUMN + COLUMN / 2 - 4, top + 3 * ROW + 3, [[_mark(by_image[place])]], 9)


def _matrix_cell(sheet: Sheet, box: Box, cosine: float, shade: float, *, is_true: bool) -> None:
    x, y, width, height = box
    ink = "white" if shade < 0.55 else "black"
    sheet.fill(box, matplotlib.colormaps["cividis"](shade))
    if is_true:
        sheet.fill((x + 2, y + 2, width - 4, height - 4), "none", edge=ink)
    value = words(f"{cosine:.3f}", ink, bold=is_true)
    sheet.write(x + (width - line_width(value, 9)) / 2, y + height / 2 - 6, [value], 9)


def _slot(name: str) -> list[Word]:
    return words(name, ROLES["fp"] if name == "false positive" else MUTED, bold=True)


def _mark(is_right: bool) -> Word:
    return Word("✓", ROLES["gt"], bold=True) if is_right else Word("✗", ROLES["fp"], bold=True)


def _coloured(values: np.ndarray, colours: str) -> Image.Image:
    return Image.fromarray((255 * matplotlib.colormaps[colours](values)[..., :3]).round().astype(np.uint8))
