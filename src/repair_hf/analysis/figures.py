"""Two pictures: records as a contact sheet, and one 3x3 grid before and after training.

In:  records; or the three images and three captions of a grid, with their cosines from two encoders.
Out: PNG files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image, ImageDraw

from repair_hf.analysis.choosing import Choice
from repair_hf.analysis.drawing import (
    CARD,
    INK,
    LEADING,
    MARGIN,
    MUTED,
    PAPER,
    ROLES,
    RULE,
    Word,
    changes,
    contain,
    fit_lines,
    line_width,
    set_lines,
    text_box,
    title_bar,
    words,
    write,
)
from repair_hf.records.columns import REASONS

DIRECTIONS = {
    "t2i": ("text → image", "a wrong image ranked high for a caption", "and was redrawn to fit it"),
    "i2t": ("image → text", "a wrong caption ranked high for an image", "and was rewritten to fit it"),
}
NAMES = {"q": "query", "gt": "ground truth", "fp": "false positive", "edit": "edit"}

PAD = 20  # pixels inside a card
CELL, TALL, GUTTER = 320, 236, 26  # a cell of a card, and what lies between two
WIDTH = 2 * MARGIN + 2 * PAD + 4 * CELL + 3 * GUTTER
NOTE = 18  # font size below the cells

SIDE, ROW, ASIDE = 196, 132, 400  # a grid's column and row, and its captions' width
PANEL, HEADER = 3 * SIDE, 74 + SIDE  # a matrix's width, and what stands above it
IMAGE_SLOTS = ("anchor", "fits the 2nd caption", "false positive")
TEXT_SLOTS = ("anchor", "false positive", "fits the 3rd image")


def contact_sheet(choice: Choice, path: str | Path) -> None:
    """Draw records side by side: query, ground truth, false positive, edit; or why there is no edit.

    Args:
        choice: Records, or dropped failures.
        path: The PNG to write.
    """
    is_dropped = "reason" in choice.rows[0]
    title = "Dropped failures" if is_dropped else "Retrieval failures and their repairs"
    parts = [title_bar(title, provenance(choice.rows[0]), WIDTH)]
    for direction, available in choice.available.items():
        if rows := choice.of(direction):
            count = f"{len(rows)} of {available:,}"
            parts += [_band(*headline(direction, is_dropped=is_dropped), count), *map(_card, rows)]
    sheet = Image.new("RGB", (WIDTH, sum(part.height for part in parts) + MARGIN), PAPER)
    y = 0
    for part in parts:
        sheet.paste(part, (0, y))
        y += part.height
    sheet.save(path)


def grid_picture(
    images: Sequence[Image.Image], texts: Sequence[str], before: np.ndarray, after: np.ndarray, path: str | Path
) -> None:
    """Draw a 3x3 grid of records with its similarities before and after training.

    Args:
        images: The anchor's image, the counterpart of the false positive caption, the false positive image.
        texts: The anchor's caption, the false positive caption, the counterpart of the false positive image.
        before: Cosines of every caption (rows) with every image (columns) before training; true pairs on the diagonal.
        after: The same after training.
        path: The PNG to write.

    Shape:
        before, after: (3 texts, 3 images).
    """
    before, after = np.asarray(before, dtype=float), np.asarray(after, dtype=float)  # (3, 3)
    if not (len(images) == len(texts) == 3 and before.shape == after.shape == (3, 3)):
        raise ValueError(
            f"A grid has 3 images, 3 texts and two matrices of (3, 3); got {len(images)}, {len(texts)}, {before.shape} "
            f"and {after.shape}."
        )
    left, panel = MARGIN + ASIDE + GUTTER, PANEL + 2 * MARGIN  # a panel with its marks
    title = title_bar("One 3 × 3 grid: captions down, images across", "cosines; true pairs framed", left + 2 * panel)
    top = title.height + HEADER  # where the matrices begin
    picture = Image.new("RGB", (title.width, top + 3 * ROW + 96), CARD)
    picture.paste(title, (0, 0))
    pen = ImageDraw.Draw(picture)
    for row, (text, slot) in enumerate(zip(texts, TEXT_SLOTS, strict=True)):
        _caption_of_row(pen, MARGIN, top + row * ROW, text, slot)
    shades = _shades(np.stack([before, after]))  # (2, 3, 3, 3): one scale for both
    _panel(picture, left, title.height, "before training", images, before, shades[0])
    _panel(picture, left + panel, title.height, "after training", images, after, shades[1])
    legend = "✓ the true pair beats the rest of its row (caption → image) or column (image → caption); no tie counts"
    write(pen, MARGIN, picture.height - 44, [words(legend, MUTED)], 17)
    picture.save(path)


def _shades(values: np.ndarray) -> np.ndarray:
    share = (values - values.min()) / max(np.ptp(values), 1e-9)
    return np.round(255 * matplotlib.colormaps["cividis"](share)[..., :3]).astype(int)


def right_answers(cosines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which captions find their image, and which images their caption. A tie is not found.

    Shape:
        cosines: (3 texts, 3 images). Returns two of (3,), bool.
    """
    truth = np.diagonal(cosines)  # (3,)
    rivals = np.where(np.eye(len(cosines), dtype=bool), -np.inf, cosines)  # (3, 3)
    return truth > rivals.max(1), truth > rivals.max(0)


def headline(direction: str, *, is_dropped: bool) -> tuple[str, str]:
    """A direction's name, and what happened in it."""
    name, failure, repair = DIRECTIONS[direction]
    return name, failure if is_dropped else f"{failure}, {repair}"


def provenance(row: dict[str, Any]) -> str:
    """The models, without the folders of the machine that they lay on."""
    names = {what: "/".join(str(row[what]).rstrip("/").split("/")[-2:]) for what in ("retriever", "llm", "editor")}
    return " · ".join(f"{what} {name}" for what, name in names.items())


def _band(name: str, meaning: str, count: str) -> Image.Image:
    band = Image.new("RGB", (WIDTH, 86), PAPER)
    pen = ImageDraw.Draw(band)
    line = [words(name, bold=True)]
    write(pen, MARGIN, 34, line, 28)
    x = MARGIN + line_width(line[0], 28) + 24
    write(pen, x, 42, [words(meaning, MUTED)], 20)
    counted = words(count, MUTED)
    write(pen, WIDTH - MARGIN - line_width(counted, 20), 42, [counted], 20)
    return band


def _card(row: dict[str, Any]) -> Image.Image:
    inner = WIDTH - 2 * MARGIN - 2 * PAD
    notes = {"audit": row["fp_reason"], "instruction": row["edit_instruction"]}
    written = {name: set_lines(words(text or "none given", INK), NOTE, inner - 130, 2) for name, text in notes.items()}
    height = 46 + TALL + 16 + sum(len(lines) * 24 + 4 for lines in written.values()) + 14
    part = Image.new("RGB", (WIDTH, height + 18), PAPER)
    pen = ImageDraw.Draw(part)
    pen.rounded_rectangle((MARGIN, 0, WIDTH - MARGIN, height), radius=10, fill=CARD, outline=RULE)
    is_dropped = "reason" in row
    texts = {role: words(row.get(f"{role}_text") or "") for role in NAMES}
    if row["direction"] == "i2t" and not is_dropped:
        texts["fp"], texts["edit"] = changes(row["fp_text"], row["edit_text"])
    for place, role in enumerate(NAMES):
        x = MARGIN + PAD + place * (CELL + GUTTER)
        _label(pen, x, role, row)
        box = (x, 46, x + CELL, 46 + TALL)
        is_text = (row["direction"] == "t2i") == (role == "q")
        if role == "edit" and is_dropped:
            text_box(pen, box, words(f"none: {row['detail'] or REASONS[row['reason']]}", MUTED), RULE)
        elif is_text:
            text_box(pen, box, texts[role], ROLES[role])
        else:
            _image_cell(part, pen, box, row.get(f"{role}_image"), row.get(f"{role}_id"))
    y = 46 + TALL + 16
    for name, lines in written.items():
        write(pen, MARGIN + PAD, y, [words(name, MUTED)], NOTE)
        y = write(pen, MARGIN + PAD + 130, y, lines, NOTE) + 4
    return part


def _label(pen: ImageDraw.ImageDraw, x: int, role: str, row: dict[str, Any]) -> None:
    name = words(NAMES[role], ROLES[role], bold=True)
    write(pen, x, 15, [name], 19)
    best = (
        "best " if row["direction"] == "i2t" else ""
    )  # an image has several captions, and the best one need not be shown
    asides = {
        "q": row["q_id"],
        "gt": f"{best}rank {row['gt_rank']} · cos {_cosine(row['gt_score'])}",
        "fp": f"rank {row['fp_rank']} · cos {_cosine(row['fp_score'])}",
        "edit": row["reason"] if "reason" in row else f"cos to the false positive {_cosine(row['edit_similarity'])}",
    }
    lines = set_lines(words(asides[role], MUTED), 14, int(CELL - line_width(name, 19) - 14), 1)
    write(pen, x + CELL - line_width(lines[0], 14), 20, lines, 14)


def _cosine(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _image_cell(
    part: Image.Image, pen: ImageDraw.ImageDraw, box: tuple, picture: Image.Image | None, name: Any
) -> None:
    x, y, right, bottom = box
    pen.rectangle(box, fill=PAPER)
    if picture is None:
        text_box(pen, box, words(f"left out of these records: {name}", MUTED), RULE)
        return
    shown = contain(picture, right - x, bottom - y)
    part.paste(shown, (x + (right - x - shown.width) // 2, y + (bottom - y - shown.height) // 2))


def _caption_of_row(pen: ImageDraw.ImageDraw, x: int, y: int, text: str, slot: str) -> None:
    lines, size = fit_lines(words(text), (22, 19, 17, 15), ASIDE, ROW - 46)
    y += round((ROW - 26 - len(lines) * size * LEADING) / 2)
    write(pen, x, y, [_slot(slot)], 17)
    write(pen, x, y + 26, lines, size)


def _slot(name: str) -> list[Word]:
    return words(name, ROLES["fp"] if name == "false positive" else MUTED, bold=True)


def _panel(
    picture: Image.Image,
    x: int,
    y: int,
    name: str,
    images: Sequence[Image.Image],
    cosines: np.ndarray,
    shades: np.ndarray,
) -> None:
    """One matrix under its images, with a mark for each answer: captions' at the right, images' at the foot."""
    pen = ImageDraw.Draw(picture)
    by_text, by_image = right_answers(cosines)
    write(pen, x, y + 22, [words(name, bold=True)], 24)
    score = words(f"{by_text.sum() + by_image.sum()} of 6 answers right", MUTED)
    write(pen, x + PANEL - line_width(score, 20), y + 25, [score], 20)
    for column, (image, slot) in enumerate(zip(images, IMAGE_SLOTS, strict=True)):
        left = x + column * SIDE
        shown = contain(image, SIDE - 16, SIDE - 46)
        picture.paste(shown, (left + (SIDE - shown.width) // 2, y + 28 + SIDE - shown.height))
        label = _slot(slot)
        write(pen, left + (SIDE - line_width(label, 15)) / 2, y + 36 + SIDE, [label], 15)
    top = y + HEADER
    for row, column in np.ndindex(3, 3):
        left, upper = x + column * SIDE + 2, top + row * ROW + 2
        box = (left, upper, left + SIDE - 4, upper + ROW - 4)
        _cell(pen, box, cosines[row, column], shades[row, column], row == column)
    for slot in range(3):
        write(pen, x + PANEL + 8, top + slot * ROW + ROW / 2 - 17, [[_mark(by_text[slot])]], 26)
        write(pen, x + slot * SIDE + SIDE / 2 - 11, top + 3 * ROW + 4, [[_mark(by_image[slot])]], 26)


def _cell(pen: ImageDraw.ImageDraw, box: tuple[int, ...], cosine: float, shade: np.ndarray, is_true: bool) -> None:
    ink = "white" if shade.sum() < 380 else "black"
    pen.rectangle(box, fill=tuple(shade.tolist()))
    if is_true:
        pen.rectangle((box[0] + 5, box[1] + 5, box[2] - 5, box[3] - 5), outline=ink, width=2)
    value = words(f"{cosine:.3f}", ink, bold=is_true)
    write(pen, (box[0] + box[2] - line_width(value, 26)) / 2, (box[1] + box[3]) / 2 - 17, [value], 26)


def _mark(is_right: bool) -> Word:
    return Word("✓", ROLES["gt"], bold=True) if is_right else Word("✗", ROLES["fp"], bold=True)
