"""The training grid of an anchor: three images against three captions, as `train --paper` draws it from records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset

from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError

IMAGE_ROLES = ("anchor", "fits the hard negative caption", "hard negative")
CAPTION_ROLES = ("anchor", "hard negative", "fits the hard negative image")
MATCH, KNOWN, NEGATIVE, NONE = "match", "known to match, left out", "hard negative", "–"


@dataclass(frozen=True)
class Item:
    """An image or a caption of a grid; `origin` is its id, or `edit`, or None if there is none."""

    role: str
    value: Any
    origin: str | None


@dataclass(frozen=True)
class Grid:
    """Three images and captions, and what each caption (row) and image (column) are to each other."""

    images: list[Item]
    captions: list[Item]
    cells: list[list[str]]


@dataclass(frozen=True)
class GridSample:
    """Grids that were drawn, and how many anchors have a whole one."""

    grids: list[Grid]
    available: int


def draw_grids(records: Dataset, pairs: Pairs, *, n: int, anchor: str, seed: int = 0) -> GridSample:
    """Draw the grid of one anchor, or of `n` anchors that have a whole one.

    Args:
        records: Records of failures on the pairs.
        pairs: The training pairs.
        n: How many to draw.
        anchor: Id of a caption, or `any` to draw `n`.
        seed: Seed of the draws.

    Raises:
        UserError: If no caption has this id, or no anchor has a whole grid.
    """
    import torch  # here, because other pages need none

    from repair_hf.training.fills import Edits

    fill = Edits(pairs, records, seed=seed, own_failures=True)
    anchors = np.arange(len(pairs.captions))
    images, texts = fill.draw(np.zeros_like(anchors), anchors)  # (M, 3) each
    is_whole = ((images >= 0) & (texts >= 0)).all(1)
    ids = pairs.captions["caption_id"][:]
    if anchor == "any":
        chosen = np.random.default_rng(seed).permutation(np.flatnonzero(is_whole))[:n]
    else:
        chosen = np.array([place for place, name in enumerate(ids) if name == anchor], int)
    if not len(chosen):
        raise UserError(
            f"`anchor` {anchor}: no caption has this id, or none a whole grid. Give the id of a caption, such as "
            f"{ids[0]}; a whole grid takes failures of both directions."
        )
    grids = []
    for image_rows, text_rows in zip(images[chosen], texts[chosen], strict=True):
        is_known = fill.truth.known(torch.as_tensor(image_rows), torch.as_tensor(text_rows)).T.tolist()
        is_here = ((text_rows[:, None] >= 0) & (image_rows >= 0)).tolist()
        cells = [[NONE if not here else KNOWN if known else NEGATIVE for here, known in zip(*row, strict=True)]
                 for row in zip(is_here, is_known, strict=True)]  # fmt: skip
        for place in range(len(cells)):
            cells[place][place] = MATCH if is_here[place][place] else NONE
        grids.append(
            Grid(
                _items(image_rows, IMAGE_ROLES, "image", pairs.images, fill.images),
                _items(text_rows, CAPTION_ROLES, "caption", pairs.captions, fill.texts),
                cells,
            )
        )
    return GridSample(grids, int(is_whole.sum()))


def _items(rows: np.ndarray, roles: tuple[str, ...], kind: str, own: Dataset, edits: Dataset | None) -> list[Item]:
    """Return the images or captions of rows, which number those of the pairs first, then the edits; -1 is none."""
    items = []
    for row, role in zip(rows.tolist(), roles, strict=True):
        if row < 0:
            items.append(Item(role, None, None))
        elif edits is not None and row >= len(own):
            (value,) = edits[row - len(own)].values()
            items.append(Item(role, value, "edit"))
        else:
            items.append(Item(role, own[row][kind], own[row][f"{kind}_id"]))
    return items
