"""Collate anchors into a batch: the pairs that stand beside them, and each distinct image and caption once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.encoder.preprocessing import TOKENIZED_AT_ONCE, Preprocessor
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.truth import expanded
from repair_hf.training.fills import Anchors

Key = tuple[int, int]  # epoch and anchor


class Pixels(Protocol):
    """A table of images: maps (n,) ascending rows to a uint8 tensor (n, 3, H, W)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: np.ndarray) -> Tensor: ...


class Keys(torch.utils.data.Dataset):
    """The dataset of the loader: a key is its own row, and the collator draws what belongs to it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, key: Key) -> Key:
        return key


class PairCollator:
    """Make a batch of the pairs of some anchors.

    An item that several pairs share is in the batch once. Captions are padded to the longest of the batch.

    Args:
        preprocessor: Turns captions into token ids.
        fill: Says which pairs stand beside an anchor.
        images: The image table, in one or more consecutive parts.
        captions: The caption table, in the same way: lists, or columns of a dataset.

    Shape:
        The batch holds `pixels` (n_images, 3, H, W) uint8; `texts`, a dict of `input_ids` and, where the model needs
        one, `attention_mask` (n_texts, L); `images` and `captions` (B, S), the places of each anchor's pairs in these,
        -1 where absent; `image_rows` and `text_rows` (B, S), the same as rows of the tables.
    """

    def __init__(
        self, preprocessor: Preprocessor, fill: Anchors, images: Sequence[Pixels], captions: Sequence[Any]
    ) -> None:
        self.fill, self.images, self.tokens = fill, list(images), Tokens(preprocessor, captions)

    def __call__(self, keys: Sequence[Key]) -> dict[str, Any]:
        epochs, anchors = np.array(keys).T
        image_rows, text_rows = self.fill.draw(epochs, anchors)  # (B, S) each
        images, at_image = _distinct(image_rows)
        texts, at_text = _distinct(text_rows)
        pixels = [part[rows] for part, rows in _by_part(self.images, images)]
        return {
            "pixels": pixels[0] if len(pixels) == 1 else torch.cat(pixels),
            "texts": self.tokens[texts],
            "images": torch.from_numpy(at_image),
            "captions": torch.from_numpy(at_text),
            "image_rows": torch.from_numpy(image_rows),
            "text_rows": torch.from_numpy(text_rows),
        }


class Tokens:
    """The token ids of a table of captions, one after the other without padding."""

    def __init__(self, preprocessor: Preprocessor, captions: Sequence[Any]) -> None:
        self.preprocessor = preprocessor
        ids, lengths = [], []
        for part in captions:
            for start in range(0, len(part), TOKENIZED_AT_ONCE):
                tokens = preprocessor.texts(part[start : start + TOKENIZED_AT_ONCE])
                length = preprocessor.lengths(tokens).numpy()
                ids.append(tokens["input_ids"].numpy()[_mask(length)].astype(np.int32))
                lengths.append(length)
        self._ids, self._lengths = np.concatenate(ids), np.concatenate(lengths)
        self._starts = np.cumsum(self._lengths) - self._lengths

    def __getitem__(self, rows: np.ndarray) -> dict[str, Tensor]:
        """Return the model's inputs for some captions, (n, L) each."""
        mask = _mask(self._lengths[rows])  # (n, L)
        ids = np.full(mask.shape, self.preprocessor.processor.tokenizer.pad_token_id)
        ids[mask] = self._ids[expanded(self._starts[rows], self._starts[rows] + self._lengths[rows])[0]]
        tokens = {"input_ids": torch.from_numpy(ids)}
        if not self.preprocessor.pads_fully:
            tokens["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
        return self.preprocessor.text_inputs(tokens, torch.arange(len(rows)))


class DecodedImages:
    """The images of a dataset, decoded and resized on each access."""

    def __init__(self, images: Dataset, column: str, preprocessor: Preprocessor) -> None:
        self.images, self.column, self.preprocessor = images, column, preprocessor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: np.ndarray) -> Tensor:
        return self.preprocessor.images(self.images[rows.tolist()][self.column])


def collator_of(encoder: DualEncoder, pairs: Pairs, fill: Anchors, *, cache_images: bool) -> PairCollator:
    """Create the collator of a training. With `cache_images`, images are decoded once, into a file."""
    images = [pixels_of(pairs.images, "image", encoder, cache_images=cache_images)]
    captions: list[Any] = [pairs.captions["caption"]]
    if fill.images is not None:
        images.append(pixels_of(fill.images, "edit_image", encoder, cache_images=cache_images))
    if fill.texts is not None:
        captions.append(fill.texts["edit_text"])
    return PairCollator(encoder.preprocessor, fill, images, captions)


def pixels_of(images: Dataset, column: str, encoder: DualEncoder, *, cache_images: bool) -> Pixels:
    """Open a column of images at the encoder's size."""
    return (PixelStore if cache_images else DecodedImages)(images, column, encoder.preprocessor)


def count_distinct(rows: np.ndarray, size: int) -> int:
    """Count the distinct rows of each batch of `size` anchors, summed over the batches; (anchors, S), -1 is none."""
    batches = np.sort(rows.reshape(-1, size * rows.shape[1]), axis=1)
    return int((np.diff(batches, axis=1, prepend=-1) > 0).sum())


def _mask(lengths: np.ndarray) -> np.ndarray:
    """Return which of (n, longest) tokens are there, for n captions of some lengths."""
    return np.arange(lengths.max()) < lengths[:, None]


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
