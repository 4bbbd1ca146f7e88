"""R@K and MRR where little can go wrong unseen; `test_ranks` and `test_metric` have slow references."""

from __future__ import annotations

import numpy as np
import pytest

from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.runtime.options import UserError


def test_one_of_several_captions_is_enough():
    """Caption 1 belongs to image 0 and looks like image 1, which ties with it: that counts against image 1."""
    texts = np.array([[1, 0], [0, 1], [0, 1], [0, 1]], np.float32)
    metrics = evaluate_retrieval(np.eye(2, dtype=np.float32), texts, np.array([0, 0, 1, 1]), ks=(1,))
    assert (metrics["i2t_R@1"], metrics["t2i_R@1"]) == (0.5, 0.75)
    names = [f"{way}_{name}" for way in ("i2t", "t2i") for name in ("R@1", "MRR", "median_rank")]
    assert list(metrics) == [*names, "n_images", "n_texts"] and (metrics["n_images"], metrics["n_texts"]) == (2, 4)


@pytest.mark.parametrize("ks", [(), (0, 1)])
def test_refuses_ks_below_one(ks):
    with pytest.raises(UserError, match="numbers from 1"):
        evaluate_retrieval(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), np.arange(2), ks=ks)
