"""Which anchors meet in a batch, and the random numbers that the grids are drawn with.

In:  the image of each anchor (a training caption), the size of a batch, a seed.
Out: for each epoch an order of (epoch, anchor) pairs in which no batch holds an image twice: two captions of one
     image in a batch would be each other's false negatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

import numpy as np
from torch.utils.data import Sampler

from repair_hf.runtime.options import UserError


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
        neighbours: From an epoch to whom each anchor is confused with, see `Grids.neighbours`; a batch is then filled
            along these: with an anchor come the caption and a caption of the image, then theirs. None fills it at random.

    Raises:
        UserError: If there are fewer images than a batch must hold.
    """

    def __init__(
        self,
        anchor_images: np.ndarray,
        batch_size: int,
        seed: int = 0,
        neighbours: Callable[[int], tuple[np.ndarray, np.ndarray]] | None = None,
    ) -> None:
        self.anchor_images, self.batch_size, self.seed, self.epoch = anchor_images, batch_size, seed, 0
        self.neighbours = neighbours
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
        near = None if self.neighbours is None else self.neighbours(self.epoch)
        epoch = _Epoch(self.anchor_images, self._captions_of, near, rng)
        return [epoch.fill(self.batch_size, remaining) for remaining in range(self.batches, 0, -1)]


class _Epoch:
    """The anchors of one epoch on their way into batches."""

    def __init__(
        self,
        anchor_images: np.ndarray,
        captions_of: np.ndarray,
        neighbours: tuple[np.ndarray, np.ndarray] | None,
        rng: np.random.Generator,
    ) -> None:
        order = rng.permutation(len(anchor_images))
        self.rng, self.left = rng, captions_of.copy()  # (images,) captions not served yet
        self.image_of: list[int] = anchor_images.tolist()
        self.captions: list[list[int]] = [[] for _ in captions_of]  # of each image, in an order of chance
        for anchor in order.tolist():
            self.captions[self.image_of[anchor]].append(anchor)
        self.near = None if neighbours is None else [near.tolist() for near in neighbours]
        self.served = bytearray(len(order))
        self.stream, self.late = iter(order.tolist()), []  # late: met when its image was in the batch already

    def fill(self, size: int, remaining: int) -> list[int]:
        """The next batch, of `remaining` that are still to be filled."""
        batch: dict[int, int] = {}  # image -> anchor
        for image in self._due(size, remaining):
            self._take(self._caption_of(image), batch)
        grown = self._grow(batch, size, 0)
        waiting, self.late = iter(self.late), []
        candidates = chain(waiting, self.stream)
        while len(batch) < size:
            anchor = next(candidates)  # there is one: `_due` sees to it
            if self.served[anchor]:
                continue
            if self.image_of[anchor] in batch:
                self.late.append(anchor)
                continue
            self._take(anchor, batch)
            grown = self._grow(batch, size, grown)
        self.late.extend(waiting)
        return list(batch.values())

    def _due(self, size: int, remaining: int) -> list[int]:
        """Images that must be served now, lest a later batch cannot be filled.

        An image serves each remaining batch once at most: beyond that, its captions are of no use. Passing over an
        image with so many left loses one; as many as are to spare may be lost.
        """
        full = np.flatnonzero(self.left >= remaining)
        to_spare = int(np.minimum(self.left, remaining).sum()) - remaining * size
        return self.rng.permutation(full)[: max(len(full) - to_spare, 0)].tolist()

    def _grow(self, batch: dict[int, int], size: int, grown: int) -> int:
        """Add the neighbours of the batch's anchors from the `grown`-th on, and theirs; how many were looked at."""
        if self.near is None:
            return grown
        texts, images = self.near
        anchors = list(batch.values())
        while grown < len(anchors) and len(batch) < size:
            anchor = anchors[grown]
            grown += 1
            caption, image = texts[anchor], images[anchor]
            if caption >= 0 and not self.served[caption] and self.image_of[caption] not in batch:
                anchors.append(self._take(caption, batch))
            if image >= 0 and image not in batch and self.left[image] and len(batch) < size:
                anchors.append(self._take(self._caption_of(image), batch))
        return grown

    def _caption_of(self, image: int) -> int:
        """One that was not served yet; there must be one."""
        captions = self.captions[image]
        while self.served[captions[-1]]:
            captions.pop()
        return captions[-1]

    def _take(self, anchor: int, batch: dict[int, int]) -> int:
        image = self.image_of[anchor]
        batch[image] = anchor
        self.served[anchor] = True
        self.left[image] -= 1
        return anchor


def _full_batches(captions_of: np.ndarray, batch_size: int) -> int:
    """Largest K for which K batches can be filled when an image serves each batch at most once."""
    batches = int(captions_of.sum()) // batch_size
    while (possible := int(np.minimum(captions_of, batches).sum()) // batch_size) < batches:
        batches = possible
    return batches
