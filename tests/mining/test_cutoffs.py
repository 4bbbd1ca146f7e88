"""Guessed cutoffs, and when the candidates above them are not certainly the best."""

import numpy as np
import pytest

from repair_hf.mining.cutoffs import LOWEST, Cutoffs, rank_in_part
from repair_hf.mining.scores import keys_of


def used(*top_k: float) -> Cutoffs:
    found = Cutoffs(np.ones(len(top_k), np.float32), k=1, eps=0.01)
    found.top_k = np.array(top_k, np.float32)
    return found


def test_best_are_certain_only_above_every_cutoff_that_was_used():
    """The first panels are screened in parallel, each with its own guess."""
    whole = Cutoffs.merged([used(0.1, 0.1, 0.5, LOWEST), used(0.1, 0.5, 0.1, LOWEST)])
    np.testing.assert_array_equal(whole.top_k, np.float32([0.1, 0.1, 0.1, LOWEST]))
    best = keys_of(np.float32([0.3, 0.3, 0.3, -0.9]))[:, None]
    assert whole.uncertain(best).tolist() == [False, True, True, False]


def test_a_best_within_the_error_of_its_cutoff_is_not_certain():
    best = keys_of(np.float32([0.305, 0.315, 0.29]))[:, None]
    assert used(0.3, 0.3, 0.3).uncertain(best).tolist() == [True, False, True]


def test_cutoffs_only_rise():
    found = used(0.3, 0.3)
    found.raise_to(np.float32([0.5, -np.inf]))
    np.testing.assert_allclose(found.top_k, [0.48, 0.3])  # less twice the error


def test_ties_at_the_cutoff_are_ranked_directly():
    found = Cutoffs(np.full(2, 0.9, np.float32), k=10, eps=1e-6)
    scores = np.stack([np.linspace(-0.5, 0.5, 1000), np.full(1000, 0.25)]).astype(np.float32)
    found.guess(slice(None), scores, share=0.1)
    assert found.has_ties.tolist() == [False, True]
    assert found.top_k[1] == np.inf


def test_a_positive_behind_many_is_counted_by_blocks():
    found = Cutoffs(np.array([0.45, -0.4], np.float32), k=0, eps=1e-6)
    found.guess(slice(None), np.tile(np.linspace(-0.5, 0.4, 1000, dtype=np.float32), (2, 1)), share=0.1)
    assert found.is_deep.tolist() == [False, True]


@pytest.mark.parametrize("k", [1, 10, 100])
def test_rank_in_a_part_seldom_stands_before_the_kth_of_all(k):
    """400 draws of a tenth of the candidates; three standard deviations leave 1 in 700."""
    rng = np.random.default_rng(0)
    assert rank_in_part(k, 1.0) == k
    wanted = rank_in_part(k, 0.1)
    among = rng.hypergeometric(k, 5000 - k, 500, size=400)  # how many of the k best a draw holds
    assert (among > wanted).mean() < 0.01
