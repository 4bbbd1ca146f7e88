"""Sample the anchors of each batch so that no batch holds an image twice.

Two captions of one image in a batch would be each other's false negatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import chain, islice

import numpy as np
from torch.utils.data import Sampler

from repair_hf.runtime.options import UserError


class OneCaptionPerImage(Sampler[tuple[int, int]]):
    """Order the anchors of an epoch so that no batch holds two captions of one image.

    The batch is that of a whole optimizer step, over all processes and accumulated parts, so one process takes the
    same steps as eight. An epoch's order depends on (seed, epoch) alone. An epoch has as many full batches as the rule
    allows; the remaining captions are dropped, others in each epoch.

    Args:
        anchor_images: (M,) the image of each anchor.
        batch_size: Anchors of one optimizer step.
        seed: Seed of the order, together with the epoch.
        neighbours: Maps an epoch to each anchor's false positives, see `Grids.neighbours`. A batch is then filled with
            an anchor's false positive caption, a caption of its false positive image, then theirs. None: at random.

    Raises:
        UserError: If there are fewer images than pairs in a batch.
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
                f"A training step of {batch_size} pairs needs as many different images, and there are {n_images}. "
                "Lower `per_device_train_batch_size` (multiplied by the processes and `gradient_accumulation_steps`)."
            )
        self.batches = _full_batches(self._captions_of, batch_size)

    def __len__(self) -> int:
        return self.batches * self.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int]]:
        rng = np.random.default_rng((self.seed, self.epoch))
        near = None if self.neighbours is None else self.neighbours(self.epoch)
        anchors = _Epoch(self.anchor_images, self._captions_of, near, rng)
        batches = [anchors.fill(self.batch_size, remaining) for remaining in range(self.batches, 0, -1)]
        for number in rng.permutation(len(batches)):
            yield from ((self.epoch, anchor) for anchor in batches[number])

    def keys(self, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield, epoch by epoch, the epochs and anchors of a run's first `steps` batches, (n,) each."""
        current, left = self.epoch, steps * self.batch_size
        for epoch in range(math.ceil(steps / self.batches)):
            self.set_epoch(epoch)
            keys = np.array(list(islice(self, left)))
            left -= len(keys)
            yield keys[:, 0], keys[:, 1]
        self.set_epoch(current)


class _Epoch:
    """The anchors of one epoch, and which of them are in a batch already."""

    def __init__(
        self,
        anchor_images: np.ndarray,
        captions_of: np.ndarray,
        neighbours: tuple[np.ndarray, np.ndarray] | None,
        rng: np.random.Generator,
    ) -> None:
        order = rng.permutation(len(anchor_images))
        self.rng, self.left = rng, captions_of.copy()  # (images,) captions in no batch yet
        self.image_of: list[int] = anchor_images.tolist()
        self.captions: list[list[int]] = [[] for _ in captions_of]  # of each image, in random order
        for anchor in order.tolist():
            self.captions[self.image_of[anchor]].append(anchor)
        self.near = None if neighbours is None else [near.tolist() for near in neighbours]
        self.served = bytearray(len(order))
        self.stream = iter(order.tolist())
        self.late: list[int] = []  # passed over because their image was in the batch

    def fill(self, size: int, remaining: int) -> list[int]:
        """Fill the next of `remaining` batches."""
        batch: dict[int, int] = {}  # image -> anchor
        for image in self._due(size, remaining):
            self._take(self._caption_of(image), batch)
        grown = self._grow(batch, size, 0)
        waiting, self.late = iter(self.late), []
        candidates = chain(waiting, self.stream)
        while len(batch) < size:
            anchor = next(candidates)  # there is one, thanks to `_due`
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
        """Return images that must be in this batch, or a later one could not be filled.

        An image can be in each remaining batch once. Passing over an image with at least that many captions left loses
        one; no more may be lost than there are to spare.
        """
        full = np.flatnonzero(self.left >= remaining)
        to_spare = int(np.minimum(self.left, remaining).sum()) - remaining * size
        return self.rng.permutation(full)[: max(len(full) - to_spare, 0)].tolist()

    def _grow(self, batch: dict[int, int], size: int, grown: int) -> int:
        """Add the neighbours of the batch's anchors from the `grown`-th on; return the number of anchors visited."""
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
        """Return a caption that is in no batch yet; there must be one."""
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
    """Return the largest number of batches that can be filled with each image at most once per batch."""
    batches = int(captions_of.sum()) // batch_size
    while (possible := int(np.minimum(captions_of, batches).sum()) // batch_size) < batches:
        batches = possible
    return batches
