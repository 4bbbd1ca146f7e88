"""Random choices of a training: the anchors of each batch, and the draws of a fill.

Both depend on seed and epoch alone: they are the same in every worker and process, and after a resume.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch.utils.data import Sampler

from repair_hf.runtime.options import UserError


class OneCaptionPerImage(Sampler[tuple[int, int]]):
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

    def __iter__(self) -> Iterator[tuple[int, int]]:
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


def uniforms(seed: int, epoch: np.ndarray, items: np.ndarray, stream: int) -> np.ndarray:
    """Draw one number in [0, 1) per item as a function of the four arguments alone.

    The generator is stateless (the mixing steps of SplitMix64). Each argument is mixed in by itself: if two were added
    first, one seed would draw in its fifth epoch what another draws in its first.

    Shape:
        epoch, items: (n,) integers. Returns (n,) float64.
    """
    state = np.zeros(1, np.uint64)  # seed and stream are mixed in once for all items
    for value in (np.uint64(seed % 2**64), np.uint64(stream), epoch.astype(np.uint64), items.astype(np.uint64)):
        state = _mix(state + value)
    return (state >> np.uint64(11)).astype(np.float64) / 2**53


def _mix(state: np.ndarray) -> np.ndarray:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
