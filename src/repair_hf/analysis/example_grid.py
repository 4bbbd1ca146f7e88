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
    """A full grid."""

    images: list[Image.Image]  # of the anchor, the match of the false positive caption, the false positive image
    texts: list[str]  # the anchor's caption, the false positive caption, the match of the false positive image
    # of the anchor's own failures, by direction
    instructions: Mapping[str, str | None] = field(default_factory=dict)


def full_grid(pairs: Pairs, records: Dataset, caption_id: str | None = None, *, seed: int = 0) -> ExampleGrid:
    """Build the grid of a caption, or of the first caption whose grid holds two edits.

    Raises:
        UserError: If there is no such caption, or its grid is not full.
    """
    grid = next(full_grids(pairs, records, caption_id, seed=seed), None)
    if grid is None:
        missing = f"{caption_id} lacks a record in one direction" if caption_id else "no caption has two edits"
        raise UserError(f"There is no full grid to draw: {missing}.")
    return grid


def full_grids(
    pairs: Pairs, records: Dataset, caption_id: str | None = None, *, seed: int = 0
) -> Iterator[ExampleGrid]:
    """Yield the grid of a caption if it is full, or each grid that holds two edits."""
    ids = pairs.captions["caption_id"][:]
    fill = PaperGrid(pairs, records, seed=seed)
    if caption_id is not None and caption_id not in ids:
        raise UserError(f"The pairs have no caption {caption_id!r}; give a caption id such as {ids[0]!r}.")
    anchors = np.arange(len(pairs)) if caption_id is None else np.array([ids.index(caption_id)])
    all_images, all_texts = fill.draw(np.zeros_like(anchors), anchors)  # (anchors, 3) each
    is_full = (all_images >= 0).all(1)
    n, n_texts = len(pairs.images), len(pairs)
    if caption_id is None:
        is_full &= (all_images[:, 1] >= n) & (all_texts[:, 2] >= n_texts)
    edited_images: Any = fill.images  # None only if no row lies beyond those of the pairs
    edited_texts: Any = fill.texts
    for at in np.flatnonzero(is_full).tolist():
        image_rows, text_rows = all_images[at].tolist(), all_texts[at].tolist()
        known = fill.truth.known(torch.tensor(image_rows), torch.tensor(text_rows)).fill_diagonal_(False)
        if caption_id is None and known.any():
            continue
        images = [
            pairs.images[row]["image"] if row < n else edited_images[row - n]["edit_image"] for row in image_rows
        ]
        texts = [
            pairs.captions[row]["caption"] if row < n_texts else edited_texts[row - n_texts]["edit_text"]
            for row in text_rows
        ]
        anchor_image, fp_image = (pairs.images[image_rows[slot]]["image_id"] for slot in (0, 2))
        wanted = {"i2t": (anchor_image, ids[text_rows[1]]), "t2i": (ids[int(anchors[at])], fp_image)}
        found = {way: _instruction(records, way, *names) for way, names in wanted.items()}
        instructions = {way: text for way, text in found.items() if text is not None}
        yield ExampleGrid(images, texts, instructions)


def cosines(grid: ExampleGrid, encoder: DualEncoder) -> np.ndarray:
    """Cosines of a grid, (3 texts, 3 images)."""
    return encoder.embed_texts(grid.texts) @ encoder.embed_images(grid.images).T


def right_answers(cosines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which captions rank their image first, and which images their caption; a tie counts as wrong.

    Shape:
        cosines: (3 texts, 3 images). Returns two arrays of (3,), bool.
    """
    truth = np.diagonal(cosines)  # (3,)
    rivals = np.where(np.eye(len(cosines), dtype=bool), -np.inf, cosines)  # (3, 3)
    return truth > rivals.max(1), truth > rivals.max(0)


def _instruction(records: Dataset, direction: str, q_id: str, fp_id: str) -> str | None:
    columns = [records.select_columns([name])[:][name] for name in ("direction", "q_id", "fp_id", "edit_instruction")]
    wanted = (direction, q_id, fp_id)
    return next((text for *key, text in zip(*columns, strict=True) if tuple(key) == wanted), None)
