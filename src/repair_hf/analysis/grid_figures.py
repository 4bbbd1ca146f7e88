"""A training grid as a figure: three captions, three images, their cosines before and after training, and the instructions behind it.

In:  pairs and records; the caption whose grid is drawn; two encoders.
Out: a figure over both columns of a paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from repair_hf.analysis.charts import chart
from repair_hf.analysis.drawing import ROLES
from repair_hf.analysis.figures import IMAGE_SLOTS, TEXT_SLOTS, right_answers
from repair_hf.analysis.lettering import write
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError
from repair_hf.training.grids import SOURCES, Grids

WIDTH, HEIGHT = 7.0, 4.3


@dataclass(frozen=True)
class Grid:
    """What a full grid holds.

    Args:
        images: The three slots.
        texts: The three slots.
        instructions: Direction -> what the anchor's own record of it told the editor.
    """

    images: list[Image.Image]
    texts: list[str]
    instructions: dict[str, str | None]


def full_grid(pairs: Pairs, records: Dataset, caption_id: str | None = None, *, seed: int = 0) -> Grid:
    """The grid of a caption; of the first one whose grid is full of edits if none is named.

    Args:
        pairs: What the records were made from.
        records: Their records.
        caption_id: Of the anchor.
        seed: Of the draw among an anchor's records.

    Raises:
        UserError: If there is no such caption, or its grid is not full.
    """
    grids, ids = Grids(pairs, records, seed=seed), pairs.captions["caption_id"][:]
    if caption_id is not None and caption_id not in ids:
        raise UserError(f"The pairs have no caption {caption_id!r}; captions are called like {ids[0]!r}.")
    anchors = np.arange(len(grids)) if caption_id is None else np.array([ids.index(caption_id)])
    drawn = grids.draw(np.zeros_like(anchors), anchors)
    edits = [SOURCES.index(name) for name in ("reciprocal", "other_edit")]
    is_full = (drawn["sources"] != SOURCES.index("absent")).all(1)
    if caption_id is None:
        is_full &= np.isin(drawn["sources"][:, 1:], edits).all(1) & ~drawn["matches"].any((1, 2))
    if not is_full.any():
        missing = (
            "no caption has a grid of two edits"
            if caption_id is None
            else f"{caption_id} lacks a record in one direction"
        )
        raise UserError(f"There is no full grid to draw: {missing}.")
    at = int(np.flatnonzero(is_full)[0])
    image_rows, text_rows = (drawn[name][at].tolist() for name in ("grid_images", "grid_texts"))
    n, edited = len(pairs.images), grids.edited_images
    images = [pairs.images[row]["image"] if row < n else edited[row - n]["edit_image"] for row in image_rows]
    image_ids = [pairs.images[row]["image_id"] for row in (image_rows[0], image_rows[2])]
    wanted = {"i2t": (image_ids[0], ids[text_rows[1]]), "t2i": (ids[int(anchors[at])], image_ids[1])}
    return Grid(
        images,
        [grids.captions[row] for row in text_rows],
        {way: _instruction(records, way, *pair) for way, pair in wanted.items()},
    )


def cosines(grid: Grid, encoder: DualEncoder) -> np.ndarray:
    """(3 texts, 3 images) cosines."""
    return encoder.embed_texts(grid.texts) @ encoder.embed_images(grid.images).T


def grid_figure(grid: Grid, before: np.ndarray, after: np.ndarray) -> Figure:
    """Draw it.

    Args:
        grid: What is in it.
        before: Cosines before training.
        after: Cosines after it.

    Shape:
        before, after: (3 texts, 3 images).
    """
    low, high = min(before.min(), after.min()), max(before.max(), after.max())
    with chart(HEIGHT, width=WIDTH) as (figure, sheet):
        figure.set_layout_engine("none")
        sheet.axis("off")
        for left, cells, name in ((0.3, before, "before training"), (0.66, after, "after training")):
            found = sum(map(np.sum, right_answers(cells)))
            figure.text(left, 0.985, name, weight="bold", size=8.5, va="top")
            figure.text(left + 0.33, 0.985, f"{found} of 6 answers right", size=7, va="top", ha="right")
            for place, (picture, slot) in enumerate(zip(grid.images, IMAGE_SLOTS, strict=True)):
                axes = figure.add_axes([left + 0.11 * place + 0.005, 0.72, 0.1, 0.2])
                axes.imshow(picture.convert("RGB"), interpolation="lanczos")
                axes.axis("off")
                axes.set_title(slot, fontsize=5.8, color=_colour(slot), pad=2)
            _matrix(figure.add_axes([left, 0.29, 0.33, 0.41]), cells, low, high)
        for place, (text, slot) in enumerate(zip(grid.texts, TEXT_SLOTS, strict=True)):
            axes = figure.add_axes([0.01, 0.29 + 0.41 * (2 - place) / 3, 0.27, 0.41 / 3])
            axes.axis("off")
            axes.text(0, 0.95, slot, size=6, weight="bold", color=_colour(slot), va="top", transform=axes.transAxes)
            write(axes, 0, 0.72, [("same", text)], size=7.5)
        for place, (way, told) in enumerate((("i2t", "caption"), ("t2i", "image"))):
            axes = figure.add_axes([0.01, 0.135 - 0.125 * place, 0.98, 0.12])
            axes.axis("off")
            axes.text(
                0,
                1,
                f"how the false-positive {told} was to be edited",
                size=6.5,
                weight="bold",
                va="top",
                transform=axes.transAxes,
            )
            write(axes, 0, 0.72, [("same", grid.instructions[way] or "not on record")], size=6.5)
    return figure


def _matrix(axes: Axes, cells: np.ndarray, low: float, high: float) -> None:
    axes.imshow(cells, cmap="cividis", vmin=low, vmax=high, aspect="auto")
    axes.axis("off")
    for row, column in np.ndindex(3, 3):
        is_dark = (cells[row, column] - low) / max(high - low, 1e-9) < 0.55
        ink = "white" if is_dark else "black"
        is_true = row == column
        axes.text(
            column,
            row,
            f"{cells[row, column]:.3f}",
            ha="center",
            va="center",
            color=ink,
            size=8.5,
            weight="bold" if is_true else "normal",
        )
        if is_true:
            axes.add_patch(_frame(row, ink))


def _frame(place: int, ink: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((place - 0.44, place - 0.42), 0.88, 0.84, fill=False, edgecolor=ink, lw=1.2)


def _colour(slot: str) -> str:
    return ROLES["fp"] if slot == "false positive" else "#222222"


def _instruction(records: Dataset, direction: str, q_id: str, fp_id: str) -> str | None:
    columns = [records.select_columns([name])[:][name] for name in ("direction", "q_id", "fp_id", "edit_instruction")]
    return next(
        (told for way, q, fp, told in zip(*columns, strict=True) if (way, q, fp) == (direction, q_id, fp_id)), None
    )
