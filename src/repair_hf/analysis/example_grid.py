"""One 3x3 training grid with its cosines, as an example to draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from PIL import Image

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError
from repair_hf.training.fills import PaperGrid


@dataclass(frozen=True)
class ExampleGrid:
    """A grid without an empty slot."""

    images: list[Image.Image]  # of the anchor, an image that fits the false positive caption, the false positive image
    texts: list[str]  # the anchor's caption, the false positive caption, a caption that fits the false positive image
    # edit instructions of the anchor's own failures, by direction
    instructions: Mapping[str, str | None] = field(default_factory=dict)


def full_grids(
    pairs: Pairs, records: Dataset, caption_id: str | None = None, *, seed: int = 0
) -> Iterator[ExampleGrid]:
    """Yield the grid of a caption if it is full, or each full grid with two edits and no masked cell.

    Raises:
        UserError: If there is no such caption.
    """
    ids = pairs.captions["caption_id"][:]
    if caption_id is not None and caption_id not in ids:
        raise UserError(f"The pairs have no caption {caption_id!r}; give a caption id such as {ids[0]!r}.")
    fill = PaperGrid(pairs, records, seed=seed)
    anchors = np.arange(len(ids)) if caption_id is None else np.array([ids.index(caption_id)])
    images, texts = fill.draw(np.zeros_like(anchors), anchors)  # rows, (anchors, 3) each
    is_shown = ((images >= 0) & (texts >= 0)).all(1)
    if caption_id is None:
        is_shown &= (images[:, 1] >= len(pairs.images)) & (texts[:, 2] >= len(ids))
    for at in np.flatnonzero(is_shown):
        known = fill.truth.known(torch.from_numpy(images[at]), torch.from_numpy(texts[at]))  # (3, 3)
        if caption_id is not None or not known.fill_diagonal_(False).any():
            yield _example(fill, records, images[at].tolist(), texts[at].tolist())


def cosines(grid: ExampleGrid, encoder: DualEncoder) -> np.ndarray:
    """Compute the cosines of a grid, (3 texts, 3 images)."""
    return encoder.embed_texts(grid.texts) @ encoder.embed_images(grid.images).T


def right_answers(cosines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which captions rank their image first, and which images their caption; a tie counts as wrong.

    Shape:
        cosines: (3 texts, 3 images). Returns two arrays of (3,), bool.
    """
    truth = np.diagonal(cosines)  # (3,)
    rivals = np.where(np.eye(len(cosines), dtype=bool), -np.inf, cosines)  # (3, 3)
    return truth > rivals.max(1), truth > rivals.max(0)


def _example(fill: PaperGrid, records: Dataset, images: list[int], texts: list[int]) -> ExampleGrid:
    """Look up the items of a grid by their rows."""
    pairs = fill.pairs
    wrong_text = pairs.captions[texts[1]]["caption_id"]
    anchor_text, wrong_image = pairs.captions[texts[0]]["caption_id"], pairs.images[images[2]]["image_id"]
    keys = {("i2t", pairs.images[images[0]]["image_id"], wrong_text), ("t2i", anchor_text, wrong_image)}
    columns = [records.select_columns([name])[:][name] for name in ("direction", "q_id", "fp_id", "edit_instruction")]
    return ExampleGrid(
        [_item(row, pairs.images, "image", fill.images) for row in images],
        [_item(row, pairs.captions, "caption", fill.texts) for row in texts],
        {key[0]: text for *key, text in zip(*columns, strict=True) if tuple(key) in keys and text is not None},
    )


def _item(row: int, items: Dataset, column: str, edits: Dataset | None) -> Any:
    """Return an image or a caption by its row, which counts the edits after the items of the pairs."""
    if row < len(items):
        return items[row][column]
    assert edits is not None, "only edits lie beyond the pairs"
    (value,) = edits[row - len(items)].values()
    return value
