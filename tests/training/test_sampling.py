"""No batch holds an image twice, every batch that can be filled is filled, and neighbours meet."""

from __future__ import annotations

import numpy as np
import pytest

from repair_hf.training.sampling import OneCaptionPerImage


def epoch_of(sampler: OneCaptionPerImage, epoch: int) -> np.ndarray:
    sampler.set_epoch(epoch)
    keys = np.array(list(sampler))
    assert (keys[:, 0] == epoch).all()
    return keys[:, 1]


def most_batches(counts: list[int], size: int) -> int:
    """Brute force: the most rows of `size` different images that can be laid, an image at most once per row."""
    batches = 0
    while sum(min(count, batches + 1) for count in counts) >= size * (batches + 1):
        batches += 1
    return batches


def confused(images: np.ndarray, rng: np.random.Generator):
    """Neighbours at random, half of them missing."""
    texts = np.where(rng.random(len(images)) < 0.5, rng.integers(len(images), size=len(images)), -1)
    pictures = np.where(rng.random(len(images)) < 0.5, rng.permutation(images), -1)
    return lambda epoch: (texts, pictures)


@pytest.mark.parametrize("along", ["random", "neighbours"])
@pytest.mark.parametrize("seed", range(12))
def test_batches_are_full_without_doubles_and_as_many_as_can_be(seed, along):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, (2, 6, 12)[seed % 3], size=rng.integers(5, 40))
    counts[0] = (1, 50)[seed % 2]  # an image with very many captions does not cost batches
    images = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    size = int(rng.integers(1, len(counts) + 1))
    sampler = OneCaptionPerImage(images, size, seed, confused(images, rng) if along == "neighbours" else None)
    anchors = epoch_of(sampler, 3)
    assert len(anchors) == len(sampler) == size * most_batches(counts.tolist(), size)
    assert len(set(anchors)) == len(anchors)
    for batch in anchors.reshape(-1, size):
        assert len(set(images[batch])) == size


def test_order_depends_on_seed_and_epoch_alone():
    images = np.repeat(np.arange(20), 3)
    first = epoch_of(OneCaptionPerImage(images, 8, seed=1), 2)
    again = OneCaptionPerImage(images, 8, seed=1)
    epoch_of(again, 0)
    assert (epoch_of(again, 2) == first).all()
    assert (epoch_of(again, 1) != first).any()
    assert (epoch_of(OneCaptionPerImage(images, 8, seed=2), 2) != first).any()


def test_every_caption_is_seen_in_the_long_run():
    images = np.repeat(np.arange(10), 2)
    sampler = OneCaptionPerImage(images, 8)  # 16 of 20 in each epoch
    assert set(np.concatenate([epoch_of(sampler, epoch) for epoch in range(30)])) == set(range(20))


def test_neighbours_in_a_batch_change():
    """Drawn apart, two of 64 images meet in at least one of five batches of 8 with probability 1 - (8/9)^5 = 0.45."""
    images = np.repeat(np.arange(64), 5)
    sampler = OneCaptionPerImage(images, 8)
    together = np.zeros((64, 64), int)
    for batch in images[epoch_of(sampler, 0)].reshape(-1, 8):
        together[np.ix_(batch, batch)] += 1
    assert (together[np.triu_indices(64, 1)] > 0).mean() > 0.4


def test_anchors_are_in_a_batch_with_those_that_they_are_confused_with():
    """Images in rings of 8 that are confused with each other by caption, or by image: batches of 8 are the rings."""
    images = np.repeat(np.arange(64), 2)
    ring = images // 8 * 8 + (images + 1) % 8
    nobody = np.full(128, -1)
    for near in ((ring * 2 + np.arange(128) % 2, nobody), (nobody, ring)):
        sampler = OneCaptionPerImage(images, 8, neighbours={1: near}.__getitem__)
        batches = images[epoch_of(sampler, 1)].reshape(-1, 8)
        assert len(batches) == 16 and all(len(set(batch // 8)) == 1 for batch in batches)
