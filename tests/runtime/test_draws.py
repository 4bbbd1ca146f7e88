"""Draws that depend on seed, epoch, item and stream alone."""

from itertools import product

import numpy as np

from repair_hf.runtime.draws import uniforms


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
