"""The batches of a training: which anchors meet in one, and what is encoded for them.

The order of the anchors depends on seed and epoch alone: it is the same in every worker and process, and after a
resume. A batch holds each distinct image and caption of its pairs once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import Pixels, pixels_of
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.encoder.token_store import TokenStore
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Anchors, Key

# On a CPU several small forwards with less padding are faster than a large one (`python benchmarks/train.py`).
AT_ONCE_ON_CPU = 96


class OneCaptionPerImage(Sampler[Key]):
    """Yield the anchors of an epoch as (epoch, caption), so that no batch holds two captions of one image.

    Two captions of one image are each other's false negatives. The batch is that of a whole optimizer step, over all
    processes and accumulated parts, so one process takes the same steps as eight. An epoch has as many full batches
    as the rule allows; the remaining captions are left out, others in each epoch.

    Args:
        caption_image: (M,) the image of each caption.
        batch_size: Anchors of one optimizer step.
        seed: Seed of the order, together with the epoch.

    Raises:
        UserError: If there are fewer images than pairs in a batch.
    """

    def __init__(self, caption_image: np.ndarray, batch_size: int, seed: int = 0) -> None:
        self.caption_image, self.batch_size, self.seed, self.epoch = caption_image, batch_size, seed, 0
        captions_of = np.bincount(caption_image)
        n_images = int((captions_of > 0).sum())
        if n_images < batch_size:
            raise UserError(
                f"A training step of {batch_size} pairs needs as many different images, and there are {n_images}. "
                "Lower `per_device_train_batch_size` (multiplied by the processes and `gradient_accumulation_steps`)."
            )
        self.batches = len(caption_image) // batch_size
        while (possible := int(np.minimum(captions_of, self.batches).sum()) // batch_size) < self.batches:
            self.batches = possible

    def __len__(self) -> int:
        return self.batches * self.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Key]:
        for anchor in self.order(self.epoch).tolist():
            yield self.epoch, anchor

    def order(self, epoch: int) -> np.ndarray:
        """Return the captions of an epoch, batch by batch.

        They are dealt to the batches in rounds, image by image, like cards: the captions of an image, at most one for
        each batch, come in a row and so land in different batches. Each round has an order of the batches of its own.
        """
        rng = np.random.default_rng((self.seed, epoch))
        images = rng.permutation(self.caption_image.max() + 1)[self.caption_image]  # (M,) in a random order
        captions = np.lexsort((rng.random(len(images)), images))
        images = images[captions]
        place = np.arange(len(images)) - np.searchsorted(images, images)  # of a caption among those of its image
        captions = captions[place < self.batches]
        captions = np.delete(captions, rng.choice(len(captions), len(captions) - len(self), replace=False))
        rounds = captions.reshape(self.batch_size, self.batches)
        dealt = np.empty_like(rounds)
        before = np.empty(0, np.int64)  # batches that hold the image with which the last round ended
        for number, cards in enumerate(rounds):
            batches = self._deal(rng, before, self._of_image(cards, rounds[number - 1, -1]))
            dealt[number, batches] = cards
            before = batches[len(cards) - self._of_image(cards[::-1], cards[-1]) :]
        return dealt.T.ravel()

    def _of_image(self, captions: np.ndarray, caption: int) -> int:
        """Count the captions at the start that are of the same image as `caption`."""
        same = self.caption_image[captions] == self.caption_image[caption]
        return len(same) if same.all() else int(same.argmin())

    def _deal(self, rng: np.random.Generator, taken: np.ndarray, n: int) -> np.ndarray:
        """Return the batches in random order, the first `n` of them not among those `taken`."""
        batches = rng.permutation(self.batches)
        is_taken = np.isin(batches[:n], taken)
        if is_taken.any():
            free = n + np.flatnonzero(~np.isin(batches[n:], taken))[: is_taken.sum()]
            wrong = np.flatnonzero(is_taken)
            batches[wrong], batches[free] = batches[free], batches[wrong]
        return batches


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

    Attributes:
        n_cut: How many captions are truncated, as `collator_of` counts them in the first process.

    Shape:
        The batch holds `pixels` (n_images, 3, H, W) uint8; `texts`, one dict for each group, of `input_ids` and, where
        the model needs one, `attention_mask` (n, L), n_texts rows in all; `images` and `captions` (B, S), the places
        of each anchor's pairs in these, -1 where absent; and `image_rows` and `text_rows` (B, S), the same as rows of
        the tables.
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
        self.tokens, self.n_cut = TokenStore(preprocessor, captions), 0

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
        collator.n_cut = encoder.report_captions([caption for part in captions for caption in part])
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
    ranges = zip(parts, starts, cuts, cuts[1:], strict=False)
    return [(part, rows[low:high] - start) for part, start, low, high in ranges if low < high]
