"""Bootstrap intervals: the same resamples and bounds as scipy's, number by number; medians against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from repair_hf.evaluation import intervals
from repair_hf.evaluation.intervals import Draws, interval
from repair_hf.runtime.options import UserError


def drawn_images(draws: Draws) -> np.ndarray:
    """The images of each resample, (R, N), drawn in one go."""
    return np.random.default_rng(draws.seed).integers(0, draws.n_images, (draws.resamples, draws.n_images))


def queries_of(images: np.ndarray, image: np.ndarray) -> np.ndarray:
    """The queries that a resample's images bring with them."""
    return np.concatenate([np.flatnonzero(image == one) for one in images])


@pytest.fixture(params=[2**20, 7])
def block(request, monkeypatch) -> None:
    """Resamples at once: all, or one, and the last block not full."""
    monkeypatch.setattr(intervals, "CELLS", request.param)


def test_equals_scipy(block):
    rng = np.random.default_rng(0)
    hits = (rng.random(60) < 0.3).astype(float)
    draws = Draws(len(hits), resamples=500, seed=7)
    found = draws.means(hits, np.arange(len(hits)))
    expected = scipy.stats.bootstrap(
        (hits,), np.mean, n_resamples=500, method="percentile", rng=np.random.default_rng(7)
    )
    np.testing.assert_allclose(found, expected.bootstrap_distribution, rtol=1e-12)
    assert interval(found) == pytest.approx(tuple(expected.confidence_interval), rel=1e-12)


def test_a_paired_difference_equals_scipy_s():
    rng = np.random.default_rng(1)
    before, now, image = rng.random(40), rng.random(40), np.arange(40)
    draws = Draws(40, resamples=300, seed=3)
    expected = scipy.stats.bootstrap(
        (before, now),
        lambda old, new, axis: new.mean(axis) - old.mean(axis),
        paired=True,
        n_resamples=300,
        method="percentile",
        rng=np.random.default_rng(3),
    )
    found = draws.means(now, image) - draws.means(before, image)
    assert interval(found) == pytest.approx(tuple(expected.confidence_interval), rel=1e-12)


def test_an_image_brings_its_captions(block):
    rng = np.random.default_rng(2)
    image = rng.permutation(np.repeat(np.arange(9), rng.integers(1, 8, 9)))  # one to seven captions each
    values = np.stack([rng.random(len(image)), rng.random(len(image))], 1)  # (Q, 2)
    values[rng.random(len(image)) < 0.4, 1] = np.nan  # no part in the second mean
    ranks = rng.integers(1, 6, len(image))
    draws = Draws(9, resamples=50, seed=4)
    means, medians = draws.means(values, image), draws.medians(ranks, image)
    assert means.shape == (50, 2)
    for images, mean, median in zip(drawn_images(draws), means, medians, strict=True):
        queries = queries_of(images, image)
        np.testing.assert_allclose(mean, np.nanmean(values[queries], 0), rtol=1e-12)
        assert median == np.median(ranks[queries])


def test_captions_drawn_apart_would_be_too_sure_of_themselves():
    hits = np.repeat(
        np.random.default_rng(5).random(200) < 0.5, 5
    )  # an image's five captions succeed or fail together
    low, high = interval(Draws(200, 1000).means(hits, np.repeat(np.arange(200), 5)))
    low_apart, high_apart = interval(Draws(1000, 1000).means(hits, np.arange(1000)))
    assert high - low == pytest.approx(5**0.5 * (high_apart - low_apart), rel=0.15)


def test_covers_the_truth_as_often_as_it_says():
    rng, covered = np.random.default_rng(6), 0
    for seed in range(200):
        low, high = interval(Draws(100, 400, seed).means(rng.random(100) < 0.5, np.arange(100)))
        covered += low <= 0.5 <= high
    assert 0.90 < covered / 200 < 0.99


def test_a_resample_without_any_query_of_a_mean_is_left_out():
    means = Draws(3, resamples=200).means(np.array([1.0, np.nan, np.nan]), np.arange(3))
    assert np.isnan(means).any()
    assert interval(means) == (1.0, 1.0)
    medians = Draws(3, resamples=200).medians(np.array([4]), np.array([0]))
    assert np.isnan(medians).sum() == np.isnan(means).sum()
    assert interval(medians) == (4.0, 4.0)


@pytest.mark.parametrize("name", ["n_images", "resamples"])
def test_nothing_cannot_be_drawn(name):
    with pytest.raises(UserError, match=f"`{name}` must be at least 1, got 0"):
        Draws(**{"n_images": 5, "resamples": 5} | {name: 0})
