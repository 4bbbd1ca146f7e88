"""Exact scores compared with exact arithmetic, and the error bound of the screen."""

import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch

from repair_hf.evaluation import judging
from repair_hf.mining import products, scores
from repair_hf.mining.faiss_index import rank_by_index
from repair_hf.mining.false_positives import mine_false_positives
from repair_hf.mining.scores import (
    NO_KEY,
    best_keys,
    decode,
    exact_scores,
    exact_scores_on_device,
    keys_of,
    kth_score,
)
from repair_hf.pairs.truth import Truth
from tests.mining.embeddings import random_unit

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")  # once in a process


def test_scores_are_the_true_products_rounded_once():
    rng = np.random.default_rng(0)
    images, texts = random_unit(rng, 20, 48), random_unit(rng, 30, 48)
    image, column = rng.integers(0, 20, 200), rng.integers(0, 30, 200)
    found = exact_scores(images, image, texts, column)
    for score, i, c in zip(found, image, column, strict=True):
        products = (Fraction(float(a)) * Fraction(float(b)) for a, b in zip(images[i], texts[c], strict=True))
        assert score == np.float32(float(sum(products)))


def test_a_score_does_not_depend_on_its_company():
    rng = np.random.default_rng(1)
    images, texts = random_unit(rng, 1500, 100), random_unit(rng, 7, 100)
    image, column = np.repeat(np.arange(1500), 7), np.tile(np.arange(7), 1500)
    together = exact_scores(images, image, texts, column)
    order = rng.permutation(len(image))[:300]
    np.testing.assert_array_equal(exact_scores(images, image[order], texts, column[order]), together[order])
    swapped = exact_scores(texts, column[order], images, image[order])
    np.testing.assert_array_equal(swapped, together[order])


@pytest.mark.parametrize("size", [1, 3, 100, 512])
def test_scores_of_a_device_are_those_of_the_cpu(size, monkeypatch):
    monkeypatch.setattr(scores, "PAIRS_ON_DEVICE", 64)
    rng = np.random.default_rng(4)
    images, texts = random_unit(rng, 30, size), random_unit(rng, 40, size)
    image, column = np.divmod(np.arange(1200), 40)
    found = exact_scores_on_device(torch.from_numpy(images), image, torch.from_numpy(texts), column)
    np.testing.assert_array_equal(found, exact_scores(images, image, texts, column))


@pytest.mark.parametrize("length", [1.0, 7.0])
def test_no_product_is_further_off_than_the_bound(length):
    """With random vectors, and with vectors whose rounding errors all have the same sign."""
    rng = np.random.default_rng(2)
    for size in (8, 512, 2048):
        tilted = np.full((2, size), (1 + 2.0**-8 + 2.0**-20) / np.sqrt(size), np.float32)
        images = length * np.concatenate([random_unit(rng, 60, size), tilted])
        texts = np.concatenate([random_unit(rng, 90, size), tilted])
        screened = torch.from_numpy(images) @ torch.from_numpy(texts).T
        image, column = np.divmod(np.arange(screened.numel()), len(texts))
        exact = exact_scores(images, image, texts, column)
        off = np.abs(screened.numpy().ravel().astype(np.float64) - exact).max()
        assert 0 < off <= products.screen_error(images, texts)


def test_keys_sort_as_scores_do_and_ties_by_candidate():
    score = np.array([0.5, -0.25, 0.0, 1.0, 0.5, -1.0], np.float32)
    candidate = np.array([7, 3, 2, 5, 1, 0])
    keys = keys_of(score, candidate)
    assert np.argsort(-keys).tolist() == [3, 4, 0, 2, 1, 5]
    np.testing.assert_array_equal(decode(keys)[0], score)
    np.testing.assert_array_equal(decode(keys)[1], candidate)
    assert (keys > NO_KEY).all() and decode(np.array([NO_KEY]))[1] == -1


def test_best_of_queries_with_many_few_and_none():
    rng = np.random.default_rng(3)
    query = np.array([3] * 40 + [0] * 2 + [1] * 5)
    rng.shuffle(query)
    score, candidate = rng.normal(size=len(query)).astype(np.float32), rng.permutation(len(query))
    keys = keys_of(score, candidate)
    best = best_keys(query, keys, 5, 4)
    for place in range(5):
        expected = sorted(keys[query == place], reverse=True)[:4]
        assert best[place].tolist() == expected + [NO_KEY] * (4 - len(expected))
    np.testing.assert_array_equal(kth_score(query, score, 5, 4), decode(best[:, 3])[0])


def test_scoring_raises_no_warning_about_sparse_tensors():
    rng, own = np.random.default_rng(0), np.arange(30) % 10
    images, texts = random_unit(rng, 10, 8), random_unit(rng, 30, 8)
    positives = Truth.annotated(own, 10)
    torch.set_warn_always(True)  # else once in a process
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mine_false_positives(images, texts, own)
            rank_by_index("i2t", images, texts, positives, np.arange(10), fps=2)
            judging._scores(images, texts, own[:, None], np.arange(30)[:, None])
            with pytest.raises(UserWarning, match="Sparse CSR"):
                exact_scores(images, own, texts, np.arange(30))
    finally:
        torch.set_warn_always(False)
