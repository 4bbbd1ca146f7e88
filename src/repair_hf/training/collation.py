"""Collate rows of `Grids` into batches that hold each distinct image and caption once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from repair_hf.encoder.preprocessing import Preprocessor

GROUP, MOST_GROUPS = 64, 4  # minimum number of captions in a group, maximum number of groups in a batch


class Pixels(Protocol):
    """A table of images: maps (n,) ascending rows to a uint8 tensor (n, 3, H, W)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: np.ndarray) -> Tensor: ...


class TrainingRows(Protocol):
    """A training set: one row per anchor, drawn anew in each epoch. `Grids` is one."""

    anchor_images: np.ndarray
    """(M,) the image of each anchor, for the sampler."""
    captions: list[str]
    """The caption table: the captions of the pairs, then the synthetic ones."""
    edited_images: Dataset | None
    """The images that follow the pairs' images in the image table, in a column `edit_image`."""

    def __len__(self) -> int: ...

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[dict[str, np.ndarray]]:
        """Return table rows by (epoch, anchor): columns `..._images` and `..._texts`, -1 for none."""
        ...

    def neighbours(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return each anchor's false positives, see `Grids.neighbours`."""
        ...

    def report(self) -> dict[str, int]:
        """Count the parts of the rows."""
        ...

    def edits_reachable(self) -> dict[str, float]:
        """Return by direction the share of edits that can be encoded in some epoch; empty without records."""
        ...

    def samples_encoded(self, keys: Iterable[tuple[np.ndarray, np.ndarray]]) -> dict[str, int]:
        """Count the synthetic samples of each kind that are encoded in the rows of some (epochs, anchors)."""
        ...


class DecodedImages:
    """The images of a dataset, decoded and resized on each access."""

    def __init__(self, images: Dataset, column: str, preprocessor: Preprocessor) -> None:
        self.images, self.column, self.preprocessor = images, column, preprocessor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: np.ndarray) -> Tensor:
        return self.preprocessor.images(self.images[rows.tolist()][self.column])


class GridCollator:
    """Make a batch from rows of `Grids`.

    An item shared by several anchors or grids is in the batch once. Captions are tokenized once, here, and come in
    groups of similar length, each padded to its own longest caption.

    Args:
        preprocessor: Turns captions into token ids.
        images: The image table, in one or more consecutive parts.
        captions: The caption table.
        chunk_size: Maximum number of images or captions per forward; by default `GROUP` or more. It is exceeded if a
            batch has few images, because each forward takes at least one image and one caption.

    Shape:
        `pixels` (n_images, 3, H, W) uint8; `texts`, one dict per group, of `input_ids` and, where the model needs one,
        `attention_mask` (n, L), n_texts rows in all; `anchor_images` and `anchor_texts` (B,) point into those; with
        grids also `grid_images` and `grid_texts` (B, 3), -1 where absent, `present` (B, 3) and `matches` (B, 3, 3);
        with further pairs of the global batch `pair_images` and `pair_texts` (B, 3), `wordings` (B, 4) and `answers`
        (B, 4, K), see `Grids`.
    """

    def __init__(
        self,
        preprocessor: Preprocessor,
        images: Sequence[Pixels],
        captions: Sequence[str],
        *,
        chunk_size: int | None = None,
    ) -> None:
        self.images, self.chunk_size = list(images), chunk_size
        tokens = preprocessor.texts(list(captions))
        lengths = preprocessor.lengths(tokens)  # (M,)
        self._by_length = lengths.argsort(stable=True)  # (M,) row of each place in the table sorted by length
        self._place = self._by_length.argsort().numpy()  # (M,) place of each row in the sorted table
        self._tokens = {name: ids[self._by_length].to(torch.int32) for name, ids in tokens.items()}  # (M, longest)
        self.preprocessor = preprocessor

    def __call__(self, rows: list[dict[str, np.ndarray]]) -> dict[str, Any]:
        drawn = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        images, of_images = self.distinct({name: drawn[name] for name in drawn if name.endswith("_images")})
        places = {  # in the captions sorted by length
            name: np.where(drawn[name] >= 0, self._place[drawn[name]], -1) for name in drawn if name.endswith("_texts")
        }
        texts, of_texts = self.distinct(places)
        groups = torch.from_numpy(texts).tensor_split(self.n_groups(len(images), len(texts)))
        batch: dict[str, Any] = {"pixels": self._pixels(images), **of_images, **of_texts}
        batch["texts"] = [self.preprocessor.text_inputs(self._tokens, group) for group in groups]
        batch |= {name: torch.from_numpy(drawn[name]) for name in ("wordings", "answers") if name in drawn}
        if "matches" in drawn:
            present = (batch["grid_images"] >= 0) | (batch["grid_texts"] >= 0)  # one of the two may be left out
            batch |= {"present": present, "matches": torch.from_numpy(drawn["matches"])}
        return batch

    def _pixels(self, rows: np.ndarray) -> Tensor:
        starts = np.cumsum([0, *map(len, self.images)])
        cuts = np.searchsorted(rows, starts)
        parts = zip(self.images, cuts, cuts[1:], starts, strict=False)
        found = [part[rows[low:high] - start] for part, low, high, start in parts if low < high]
        return found[0] if len(found) == 1 else torch.cat(found)

    def n_groups(self, n_images: int, n_texts: int) -> int:
        """Return the number of caption groups of a batch."""
        if self.chunk_size is None:
            return min(max(n_texts // GROUP, 1), MOST_GROUPS)
        return min(math.ceil(max(n_images, n_texts) / self.chunk_size), n_images, n_texts)

    def distinct(self, columns: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, Tensor]]:
        """Map columns of (B,) or (B, k) table rows to the distinct rows, ascending, and the index of each in these."""
        rows, places = np.unique(np.concatenate([column.ravel() for column in columns.values()]), return_inverse=True)
        if rows[0] < 0:  # -1 means absent and stays -1
            rows, places = rows[1:], places - 1
        cuts = np.cumsum([column.size for column in columns.values()])[:-1]
        parts = zip(columns.items(), np.split(places, cuts), strict=True)
        return rows, {name: torch.from_numpy(part.reshape(column.shape)) for (name, column), part in parts}
