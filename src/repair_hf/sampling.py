"""Which anchors meet in a batch, and the random numbers that the grids are drawn with.

In:  the image of each anchor (a training caption), the size of a batch, a seed.
Out: for each epoch an order of (epoch, anchor) pairs in which no batch holds an image twice: two captions of one
     image in a batch would be each other's false negatives.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import numpy as np
from torch.utils.data import Sampler

from repair_hf.options import UserError


class OneCaptionPerImage(Sampler[tuple[int, int]]):
    """Order the anchors of an epoch so that no batch holds two captions of one image.

    The batch is that of a whole optimizer step, over all processes and accumulated parts. Every smaller cut of the
    same order is then free of doubles too, and one process sees the very steps that eight see. An epoch's order
    depends on (seed, epoch) alone. It holds as many full batches as the rule allows; what is left over is left out,
    other captions each epoch.

    Args:
        anchor_images: (M,) the image that each anchor belongs to.
        batch_size: Anchors of one optimizer step.
        seed: Drawn from together with the epoch.

    Raises:
        UserError: If there are fewer images than a batch must hold.
    """

    def __init__(self, anchor_images: np.ndarray, batch_size: int, seed: int = 0) -> None:
        self.anchor_images, self.batch_size, self.seed, self.epoch = anchor_images, batch_size, seed, 0
        self._captions_of = np.bincount(anchor_images)  # (images,)
        n_images = int((self._captions_of > 0).sum())
        if n_images < batch_size:
            raise UserError(
                f"A training step of {batch_size} pairs needs as many different images, and there are {n_images}: two "
                "captions of one image must not meet in a batch. Lower `per_device_train_batch_size` (which counts "
                "once per process and per `gradient_accumulation_steps`)."
            )
        self.batches = _full_batches(self._captions_of, batch_size)

    def __len__(self) -> int:
        return self.batches * self.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass draws. The trainer calls it."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        rng = np.random.default_rng((self.seed, self.epoch))
        batches = self._fill_batches(rng)
        for number in rng.permutation(len(batches)):
            yield from ((self.epoch, anchor) for anchor in batches[number])

    def _fill_batches(self, rng: np.random.Generator) -> list[list[int]]:
        """Serve first the images with the most captions left: no other order fills more batches."""
        shuffled = np.lexsort((rng.random(len(self.anchor_images)), self.anchor_images))  # (M,) grouped by image
        images = self.anchor_images[shuffled]  # (M,)
        starts = np.cumsum(self._captions_of) - self._captions_of  # (images,)
        left = self._captions_of[images] - (np.arange(len(images)) - starts[images])  # (M,)
        order = np.lexsort((rng.random(len(images)), -left))  # (M,)
        stream = zip(images[order].tolist(), shuffled[order].tolist(), strict=True)
        batches, late = [], []
        for _ in range(self.batches):
            waiting, late, batch = iter(late), [], {}
            for image, anchor in chain(waiting, stream):
                if image in batch:
                    late.append((image, anchor))  # waits for the next batch
                    continue
                batch[image] = anchor
                if len(batch) == self.batch_size:
                    break
            late.extend(waiting)
            batches.append(list(batch.values()))
        return batches


def _full_batches(captions_of: np.ndarray, batch_size: int) -> int:
    """Largest K for which K batches can be filled when an image serves each batch at most once."""
    batches = int(captions_of.sum()) // batch_size
    while (possible := int(np.minimum(captions_of, batches).sum()) // batch_size) < batches:
        batches = possible
    return batches


def uniforms(seed: int, epoch: np.ndarray, items: np.ndarray, stream: int) -> np.ndarray:
    """One number in [0, 1) for each item, a function of the four arguments and of nothing else.

    A stateless generator (the mixing steps of SplitMix64) instead of a stream: whoever asks, in whatever order and in
    whichever worker, gets the same draw.

    Shape:
        epoch, items: (n,) integers. Returns (n,) float64.
    """
    state = np.full(len(items), (seed * 4 + stream) % 2**64, dtype=np.uint64)
    for value in (epoch, items):
        state = _mix(state + value.astype(np.uint64))
    return (_mix(state) >> np.uint64(11)).astype(np.float64) / 2**53


def _mix(state: np.ndarray) -> np.ndarray:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
