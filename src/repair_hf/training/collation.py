"""Collate anchors into a batch: the pairs that stand beside them, and each distinct image and caption once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import Pixels, pixels_of
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.encoder.token_store import TokenStore
from repair_hf.pairs.dataset import Pairs
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Anchors, Key

# On a CPU several small forwards with less padding are faster than a large one (`python benchmarks/train.py`).
GROUPS_ON_CPU = 4


class PairCollator:
    """Make a batch of the pairs of some anchors.

    An item that several pairs share is in the batch once. Captions come in groups of similar length, each padded to
    its own longest.

    Args:
        preprocessor: Turns captions into token ids.
        fill: Says which pairs stand beside an anchor.
        images: The image table, in one or more consecutive parts.
        captions: The caption table, in the same way: lists, or columns of a dataset.
        groups: How many groups of captions, and so forwards of the model.
        chunk_size: Most images or captions of a forward, in place of `groups`. It is exceeded where a batch has few of
            one kind: each forward takes at least one of both.

    Shape:
        The batch holds `pixels` (n_images, 3, H, W) uint8; `texts`, one dict for each group, of `input_ids` and, where
        the model needs one, `attention_mask` (n, L), n_texts rows in all; `images` and `captions` (B, S), the places
        of each anchor's pairs in these, -1 where absent; `image_rows` and `text_rows` (B, S), the same as rows of the
        tables.
    """

    def __init__(
        self,
        preprocessor: Preprocessor,
        fill: Anchors,
        images: Sequence[Pixels],
        captions: Sequence[Any],
        *,
        groups: int = 1,
        chunk_size: int | None = None,
    ) -> None:
        self.fill, self.images, self.groups, self.chunk_size = fill, list(images), groups, chunk_size
        self.tokens = TokenStore(preprocessor, captions)

    def __call__(self, keys: Sequence[Key]) -> dict[str, Any]:
        epochs, anchors = np.array(keys).T
        image_rows, text_rows = self.fill.draw(epochs, anchors)  # (B, S) each
        images, at_image = _distinct(image_rows)
        texts, at_text = _distinct(text_rows)
        by_length = self.tokens.lengths[texts].argsort(kind="stable")
        at_text = np.where(at_text < 0, -1, by_length.argsort()[at_text])
        groups = np.array_split(texts[by_length], self.n_groups(len(images), len(texts)))
        pixels = [part[rows] for part, rows in _by_part(self.images, images)]
        return {
            "pixels": pixels[0] if len(pixels) == 1 else torch.cat(pixels),
            "texts": [self.tokens[group] for group in groups],
            "images": torch.from_numpy(at_image),
            "captions": torch.from_numpy(at_text),
            "image_rows": torch.from_numpy(image_rows),
            "text_rows": torch.from_numpy(text_rows),
        }

    def n_groups(self, n_images: int, n_texts: int) -> int:
        """Return the number of caption groups of a batch; with `chunk_size`, of its chunks."""
        if self.chunk_size is None:
            return min(self.groups, n_images, n_texts)
        return min(math.ceil(max(n_images, n_texts) / self.chunk_size), n_images, n_texts)


def collator_of(encoder: DualEncoder, pairs: Pairs, fill: Anchors, args: RepairConfig) -> PairCollator:
    """Create the collator of a training. With `cache_images`, images are decoded once, into a file."""
    cache_images = args.cache_images
    images = [pixels_of(pairs.images, "image", encoder.preprocessor, cache_images=cache_images)]
    captions: list[Any] = [pairs.captions["caption"]]
    if fill.images is not None:
        images.append(pixels_of(fill.images, "edit_image", encoder.preprocessor, cache_images=cache_images))
    if fill.texts is not None:
        captions.append(fill.texts["edit_text"])
    groups = GROUPS_ON_CPU if args.device.type == "cpu" else 1
    return PairCollator(encoder.preprocessor, fill, images, captions, groups=groups, chunk_size=args.chunk_size)


def count_distinct(rows: np.ndarray, size: int) -> int:
    """Count the distinct rows of each batch of `size` anchors, summed over the batches; (anchors, S), -1 is none."""
    batches = np.sort(rows.reshape(-1, size * rows.shape[1]), axis=1)
    return int((np.diff(batches, axis=1, prepend=-1) > 0).sum())


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows, ascending, and the place of each of the (B, S) among them; -1 stays -1."""
    distinct, places = np.unique(rows, return_inverse=True)
    has_absent = int(distinct[0] < 0)
    return distinct[has_absent:], places.reshape(rows.shape) - has_absent


def _by_part(parts: Sequence[Any], rows: np.ndarray) -> list[tuple[Any, np.ndarray]]:
    """Cut ascending rows of a table by its parts, and count them from each part's begin; empty parts stay out."""
    starts = np.cumsum([0, *map(len, parts)])
    cuts = np.searchsorted(rows, starts)
    found = zip(parts, starts, cuts, cuts[1:], strict=False)
    return [(part, rows[low:high] - start) for part, start, low, high in found if low < high]
