"""Rows of `Grids` become tensors: each distinct image and caption of a batch once.

In:  rows of the image and caption tables.
Out: pixels, token ids, and where in them each anchor and each grid finds its items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from repair_hf.preprocessing import Preprocessor


class Pixels(Protocol):
    """A table of images: (n,) ascending rows to a uint8 tensor (n, 3, H, W)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: np.ndarray) -> Tensor: ...


class DecodedImages:
    """The images of a dataset, decoded and resized whenever they are asked for."""

    def __init__(self, images: Dataset, column: str, preprocessor: Preprocessor) -> None:
        self.images, self.column, self.preprocessor = images, column, preprocessor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: np.ndarray) -> Tensor:
        return self.preprocessor.images(self.images[rows.tolist()][self.column])


class GridCollator:
    """Make a batch of rows of `Grids`.

    An item that several anchors or grids of the batch share is in it once. Captions are padded to the longest of the
    batch; all of them are tokenized here, once.

    Args:
        preprocessor: Turns captions into token ids.
        images: The image table, in one or more parts that follow one another.
        captions: The caption table.

    Shape:
        `pixels` (n_images, 3, H, W) uint8, `input_ids` and, where the tokenizer gives one, `attention_mask`
        (n_texts, L); `anchor_images` and `anchor_texts` (B,) point into those; with grids also `grid_images` and
        `grid_texts` (B, 3), -1 where absent, `present` (B, 3) and `matches` (B, 3, 3) bool.
    """

    def __init__(self, preprocessor: Preprocessor, images: Sequence[Pixels], captions: Sequence[str]) -> None:
        self.images = list(images)
        tokens = preprocessor.texts(list(captions))
        self._tokens = {name: ids.to(torch.int32) for name, ids in tokens.items()}  # (M, longest)
        self._lengths = self._tokens["attention_mask"].sum(1) if "attention_mask" in tokens else None  # (M,)

    def __call__(self, rows: list[dict[str, np.ndarray]]) -> dict[str, Tensor]:
        drawn = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        images, anchor_images, grid_images = _distinct(drawn["anchor_images"], drawn.get("grid_images"))
        texts, anchor_texts, grid_texts = _distinct(drawn["anchor_texts"], drawn.get("grid_texts"))
        batch = {"pixels": self._pixels(images), "anchor_images": anchor_images, "anchor_texts": anchor_texts}
        batch |= self._texts(torch.from_numpy(texts))
        if grid_images is not None:
            batch |= {"grid_images": grid_images, "grid_texts": grid_texts}
            batch |= {"present": grid_images >= 0, "matches": torch.from_numpy(drawn["matches"])}
        return batch

    def _pixels(self, rows: np.ndarray) -> Tensor:
        starts = np.cumsum([0, *map(len, self.images)])
        cuts = np.searchsorted(rows, starts)
        parts = zip(self.images, cuts, cuts[1:], starts, strict=False)
        return torch.cat([part[rows[low:high] - start] for part, low, high, start in parts if low < high])

    def _texts(self, rows: Tensor) -> dict[str, Tensor]:
        longest = None if self._lengths is None else int(self._lengths[rows].max())
        return {name: ids[rows, :longest].long() for name, ids in self._tokens.items()}


def _distinct(anchors: np.ndarray, grids: np.ndarray | None) -> tuple[np.ndarray, Tensor, Tensor | None]:
    """(B,) and (B, 3) rows of a table to the distinct rows, ascending, and where in those each was found."""
    if grids is None:
        rows, places = np.unique(anchors, return_inverse=True)
        return rows, torch.from_numpy(places), None
    rows, places = np.unique(np.concatenate([anchors[:, None], grids], 1), return_inverse=True)  # places: (B, 4)
    if rows[0] < 0:  # "absent" is no row, and stays -1
        rows, places = rows[1:], places - 1
    places = torch.from_numpy(places)
    return rows, places[:, 0], places[:, 1:]
