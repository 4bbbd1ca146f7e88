"""R@K and MRR against the naive full matrix, on data with ties, and where little can go wrong unseen."""

from __future__ import annotations

import numpy as np
import pytest

from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.runtime.options import UserError


def naive(images: np.ndarray, texts: np.ndarray, owner: np.ndarray, ks: tuple[int, ...]) -> dict[str, float]:
    scores = images @ texts.T
    is_match = owner[None, :] == np.arange(len(images))[:, None]
    metrics = {}
    for direction, matrix, relevant in (("i2t", scores, is_match), ("t2i", scores.T, is_match.T)):
        ranks = []
        for row, good in zip(matrix, relevant, strict=True):
            best = max(row[good])
            ranks.append(1 + sum(1 for score, is_good in zip(row, good, strict=True) if score >= best and not is_good))
        metrics |= {f"{direction}_R@{k}": np.mean([rank <= k for rank in ranks]) for k in ks}
        metrics[f"{direction}_MRR"] = np.mean([1 / rank for rank in ranks])
        metrics[f"{direction}_median_rank"] = np.median(ranks)
    return metrics | {"n_images": len(images), "n_texts": len(texts)}


@pytest.mark.parametrize(("n_images", "n_texts"), [(11, 55), (13, 29), (1, 4)])
def test_equals_the_naive_matrix(n_images, n_texts):
    rng = np.random.default_rng(n_texts)
    images, texts = (rng.choice([-0.5, 0.5], (count, 4)).astype(np.float32) for count in (n_images, n_texts))
    owner = np.concatenate([np.arange(n_images), rng.integers(0, n_images, n_texts - n_images)])
    metrics = evaluate_retrieval(images, texts, owner, ks=(1, 3))
    assert metrics == pytest.approx(naive(images, texts, owner, (1, 3)))
    names = [f"{way}_{name}" for way in ("i2t", "t2i") for name in ("R@1", "R@3", "MRR", "median_rank")]
    assert list(metrics) == [*names, "n_images", "n_texts"]


def test_one_of_several_captions_is_enough():
    """Caption 1 belongs to image 0 and looks like image 1, which ties with it: that counts against image 1."""
    texts = np.array([[1, 0], [0, 1], [0, 1], [0, 1]], np.float32)
    metrics = evaluate_retrieval(np.eye(2, dtype=np.float32), texts, np.array([0, 0, 1, 1]), ks=(1,))
    assert (metrics["i2t_R@1"], metrics["t2i_R@1"]) == (0.5, 0.75)


def test_a_collapsed_model_scores_as_badly_as_can_be():
    metrics = evaluate_retrieval(np.ones((20, 1), np.float32), np.ones((20, 1), np.float32), np.arange(20))
    assert metrics["i2t_R@10"] == metrics["t2i_R@10"] == 0
    assert metrics["i2t_MRR"] == pytest.approx(1 / 20)


@pytest.mark.parametrize("ks", [(), (0, 1)])
def test_refuses_ks_below_one(ks):
    with pytest.raises(UserError, match="numbers from 1"):
        evaluate_retrieval(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), np.arange(2), ks=ks)
