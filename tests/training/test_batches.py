"""No batch holds an image twice, every batch that can be filled is, and each distinct item is in a batch once."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from repair_hf.training.batches import OneCaptionPerImage, PairCollator

CAPTIONS = ["a red circle on grey paper", "circle", "a blue square"]
EDITS = ["one", "a yellow triangle on grey paper again and again"]


def epoch_of(sampler: OneCaptionPerImage, epoch: int) -> np.ndarray:
    sampler.set_epoch(epoch)
    keys = np.array(list(sampler))
    assert (keys[:, 0] == epoch).all()
    return keys[:, 1]


def most_batches(counts: tuple[int, ...], size: int, known: dict) -> int:
    """Brute force: the most batches of `size` different images, over every choice of images for the next batch."""
    counts = tuple(sorted(count for count in counts if count))
    if counts not in known:
        choices = {
            tuple(sorted(count - (place in chosen) for place, count in enumerate(counts)))
            for chosen in (set(some) for some in product(range(len(counts)), repeat=size))
            if len(chosen) == size
        }
        known[counts] = max((1 + most_batches(left, size, known) for left in choices), default=0)
    return known[counts]


@pytest.mark.parametrize("seed", range(25))
def test_an_epoch_has_as_many_full_batches_as_can_be_laid(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, size=rng.integers(3, 6))
    size = int(rng.integers(1, 4))
    sampler = OneCaptionPerImage(np.repeat(np.arange(len(counts)), counts), size, seed)
    assert len(sampler) == size * most_batches(tuple(counts.tolist()), size, {})


@pytest.mark.parametrize("seed", range(12))
def test_batches_hold_no_image_twice_and_a_caption_once(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, (2, 6, 12)[seed % 3], size=rng.integers(5, 40))  # some images have no caption
    counts[0] = (1, 50)[seed % 2]  # an image with very many captions does not cost batches
    images = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    size = int(rng.integers(1, (counts > 0).sum() + 1))
    sampler = OneCaptionPerImage(images, size, seed)
    for epoch in range(4):
        anchors = epoch_of(sampler, epoch)
        assert len(anchors) == len(sampler) == len(set(anchors)) and len(anchors) % size == 0
        for batch in anchors.reshape(-1, size):
            assert len(set(images[batch])) == size


def test_order_depends_on_seed_and_epoch_alone():
    images = np.repeat(np.arange(20), 3)
    first = epoch_of(OneCaptionPerImage(images, 8, seed=1), 2)
    again = OneCaptionPerImage(images, 8, seed=1)
    epoch_of(again, 0)
    assert (epoch_of(again, 2) == first).all() and (epoch_of(again, 1) != first).any()
    assert (epoch_of(OneCaptionPerImage(images, 8, seed=2), 2) != first).any()


@pytest.mark.parametrize("counts", [[2] * 10, [1, 9, *[3] * 9]])
def test_every_caption_is_in_some_epoch_also_where_some_are_left_out(counts):
    images = np.repeat(np.arange(len(counts)), counts)
    sampler = OneCaptionPerImage(images, 8)
    assert len(sampler) < len(images)
    assert set(np.concatenate([epoch_of(sampler, epoch) for epoch in range(40)])) == set(range(len(images)))


def test_neighbours_in_a_batch_change():
    """Drawn apart, two of 64 images meet in at least one of five batches of 8 with probability 1 - (8/9)^5 = 0.45."""
    images = np.repeat(np.arange(64), 5)
    sampler = OneCaptionPerImage(images, 8)
    together = np.zeros((64, 64), int)
    for batch in images[epoch_of(sampler, 0)].reshape(-1, 8):
        together[np.ix_(batch, batch)] += 1
    assert (together[np.triu_indices(64, 1)] > 0).mean() > 0.4


class Table:
    """Image k is k everywhere; it takes ascending rows alone, as a memory-mapped table would like them."""

    def __init__(self, first: int, size: int) -> None:
        self.values = torch.arange(first, first + size, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: np.ndarray) -> torch.Tensor:
        assert (np.diff(rows) > 0).all() and rows.min() >= 0
        return self.values[torch.from_numpy(rows)]


def collate(preprocessor, images: list[list[int]], texts: list[list[int]], at_once: int | None = None) -> dict:
    """The batch of anchors whose pairs are these rows."""

    def draw(epochs, anchors):
        assert (epochs == 3).all()
        return np.array(images)[anchors], np.array(texts)[anchors]

    fill = SimpleNamespace(draw=draw)
    collator = PairCollator(preprocessor, fill, [Table(0, 6), Table(6, 3)], [CAPTIONS, EDITS], at_once)
    return collator([(3, anchor) for anchor in range(len(images))])


def looked_up(places: torch.Tensor, values: list) -> list:
    return [[None if place < 0 else values[place] for place in row] for row in places.tolist()]


@pytest.mark.parametrize(("at_once", "n_groups"), [(None, 1), (5, 1), (3, 2), (2, 3), (1, 4)])
def test_shared_items_are_in_the_batch_once_and_found_again(at_once, n_groups, preprocessor):
    images, texts = [[4, 7, 2], [2, 8, 4], [5, -1, 4]], [[0, 3, 2], [1, 3, 0], [2, -1, -1]]
    batch = collate(preprocessor, images, texts, at_once)
    assert batch["pixels"].dtype == torch.uint8 and batch["pixels"][:, 0, 0, 0].tolist() == [2, 4, 5, 7, 8]
    assert looked_up(batch["images"], [2, 4, 5, 7, 8]) == [[4, 7, 2], [2, 8, 4], [5, None, 4]]
    decode = preprocessor.processor.tokenizer.decode
    groups = [part["input_ids"] for part in batch["texts"]]
    said = [decode(row, skip_special_tokens=True).strip() for ids in groups for row in ids]
    assert sorted(said) == sorted([*CAPTIONS, EDITS[0]]) and len(groups) == n_groups
    named = [*CAPTIONS, *EDITS, None]
    assert looked_up(batch["captions"], said) == [[named[k] for k in row] for row in texts]
    assert batch["image_rows"].tolist() == images and batch["text_rows"].tolist() == texts
    assert collate(preprocessor, [[0], [5]], [[0], [1]])["pixels"][:, 0, 0, 0].tolist() == [0, 5]  # of one part
    edits = collate(preprocessor, [[-1], [8]], [[-1], [4]])
    assert edits["pixels"][:, 0, 0, 0].tolist() == [8] and edits["images"].tolist() == [[-1], [0]]
