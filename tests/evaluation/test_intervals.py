"""Bootstrap intervals: the same resamples and bounds as scipy's, number by number; medians against numpy's."""

import numpy as np
import pytest
import scipy.stats

from repair_hf.evaluation import intervals
from repair_hf.evaluation.intervals import Draws, interval
from repair_hf.runtime.options import UserError


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


def test_an_image_brings_its_captions(block):
    rng = np.random.default_rng(2)
    image = rng.permutation(np.repeat(np.arange(9), rng.integers(1, 8, 9)))  # one to seven captions each
    values = np.stack([rng.random(len(image)), rng.random(len(image))], 1)  # (Q, 2)
    values[rng.random(len(image)) < 0.4, 1] = np.nan  # no part in the second mean
    ranks = rng.integers(1, 6, len(image))
    draws = Draws(9, resamples=50, seed=4)
    means, medians = draws.means(values, image), draws.medians(ranks, image)
    assert means.shape == (50, 2)
    drawn = np.random.default_rng(4).integers(0, 9, (50, 9))  # the images of each resample, drawn in one go
    for images, mean, median in zip(drawn, means, medians, strict=True):
        queries = np.concatenate([np.flatnonzero(image == one) for one in images])
        np.testing.assert_allclose(mean, np.nanmean(values[queries], 0), rtol=1e-12)
        assert median == np.median(ranks[queries])


def test_a_resample_without_any_query_of_a_mean_is_left_out():
    means = Draws(3, resamples=200).means(np.array([1.0, np.nan, np.nan]), np.arange(3))
    assert np.isnan(means).any()
    assert interval(means) == (1.0, 1.0)
    medians = Draws(3, resamples=200).medians(np.array([4]), np.array([0]))
    assert np.isnan(medians).sum() == np.isnan(means).sum()
    assert interval(medians) == (4.0, 4.0)


@pytest.mark.parametrize("name", ["n_images", "resamples"])
def test_nothing_cannot_be_drawn(name):
    with pytest.raises(UserError, match=f"`{name}` must be greater than or equal to 1, got 0"):
        Draws(**{"n_images": 5, "resamples": 5} | {name: 0})
