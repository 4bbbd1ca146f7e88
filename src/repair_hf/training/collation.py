"""Collate anchors into a batch: the pairs that stand beside them, and each distinct image and caption once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import Pixels, pixels_of
from repair_hf.encoder.preprocessing import Preprocessor, warn_of_cuts
from repair_hf.encoder.token_store import TokenStore
from repair_hf.pairs.dataset import Pairs
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Anchors, Key

# On a CPU several small forwards with less padding are faster than a large one (`python benchmarks/train.py`).
AT_ONCE_ON_CPU = 96


class PairCollator:
    """Make a batch of the pairs of some anchors.

    An item that several pairs share is in the batch once. Captions come in groups of similar length, each padded to
    its own longest.

    Args:
        preprocessor: Turns captions into token ids.
        fill: Says which pairs stand beside an anchor.
        images: The image table, in one or more consecutive parts.
        captions: The caption table, in the same way: lists, or columns of a dataset.
        at_once: Most images or captions of a forward, by default all. It is exceeded where a batch has few of one
            kind: each forward takes at least one of both.

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
        at_once: int | None = None,
    ) -> None:
        self.fill, self.images, self.at_once = fill, list(images), at_once
        self.tokens = TokenStore(preprocessor, captions)

    def __call__(self, keys: Sequence[Key]) -> dict[str, Any]:
        epochs, anchors = np.array(keys).T
        image_rows, text_rows = self.fill.draw(epochs, anchors)  # (B, S) each
        images, at_image = _distinct(image_rows)
        texts, at_text = _distinct(text_rows)
        by_length = self.tokens.lengths[texts].argsort(kind="stable")
        at_text = np.where(at_text < 0, -1, by_length.argsort()[at_text])
        sizes = len(images), len(texts)
        n_groups = 1 if self.at_once is None else min(math.ceil(max(sizes) / self.at_once), *sizes)
        groups = np.array_split(texts[by_length], n_groups)
        pixels = [part[rows] for part, rows in _by_part(self.images, images)]
        return {
            "pixels": pixels[0] if len(pixels) == 1 else torch.cat(pixels),
            "texts": [self.tokens[group] for group in groups],
            "images": torch.from_numpy(at_image),
            "captions": torch.from_numpy(at_text),
            "image_rows": torch.from_numpy(image_rows),
            "text_rows": torch.from_numpy(text_rows),
        }


def collator_of(encoder: DualEncoder, pairs: Pairs, fill: Anchors, args: RepairConfig) -> PairCollator:
    """Create the collator of a training. With `cache_images`, images are decoded once, into a file."""
    images, captions = [(pairs.images, "image")], [pairs.captions["caption"]]
    if fill.images is not None:
        images.append((fill.images, "edit_image"))
    if fill.texts is not None:
        captions.append(fill.texts["edit_text"])
    pixels = [pixels_of(*part, encoder.preprocessor, cache_images=args.cache_images) for part in images]
    at_once = args.chunk_size or (AT_ONCE_ON_CPU if args.device.type == "cpu" else None)
    collator = PairCollator(encoder.preprocessor, fill, pixels, captions, at_once)
    if args.process_index == 0:
        warn_of_cuts(collator.tokens.n_cut, len(collator.tokens.lengths), encoder.preprocessor.max_length)
    return collator


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
