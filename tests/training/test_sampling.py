"""No batch holds an image twice, every batch that can be filled is; draws depend on their arguments alone."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from repair_hf.runtime.options import UserError
from repair_hf.training.sampling import OneCaptionPerImage, uniforms


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


def test_a_batch_larger_than_the_images_is_an_error():
    with pytest.raises(UserError, match="there are 3.*`per_device_train_batch_size`"):
        OneCaptionPerImage(np.array([0, 0, 1, 4]), 4)


def test_uniforms_are_uniform_and_independent_of_company():
    items = np.arange(20_000)
    draws = uniforms(7, np.full_like(items, 3), items, 0)
    assert ((draws >= 0) & (draws < 1)).all()
    counts = np.histogram(draws, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 44  # chi-squared, 19 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.03
    some = np.array([17, 3, 19_999])
    assert (uniforms(7, np.full_like(some, 3), some, 0) == draws[some]).all()


def test_no_seed_epoch_or_stream_repeats_the_draws_of_another():
    items = np.arange(1000)
    draws = {
        (seed, epoch, stream): uniforms(seed, np.full_like(items, epoch), items, stream)
        for seed, epoch, stream in product(range(4), range(8), range(4))
    }
    assert len({values.tobytes() for values in draws.values()}) == len(draws)
    links = np.corrcoef(np.stack(list(draws.values()))) - np.eye(len(draws))  # of 8,128 pairs
    assert np.abs(links).max() < 0.17  # 5 standard deviations
