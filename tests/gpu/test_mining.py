"""Mining on a GPU finds the false positives and scores of a sorted float64 matrix, and those of the CPU."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from benchmarks.common import Vectors
from repair_hf.mining.ranking import rank_both_ways
from repair_hf.pairs.truth import Truth
from tests.mining.embeddings import COLLECTIONS, check

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("k_image", "k_caption", "block"), [(5, 1, 96), (40, 40, 128)])
@pytest.mark.parametrize("name", COLLECTIONS)
def test_false_positives_and_scores_are_those_of_the_whole_matrix(name, k_image, k_caption, block, device):
    check(*COLLECTIONS[name](np.random.default_rng(1)), k_image, k_caption, block=block, device=device)


def test_a_large_collection_is_ranked_as_on_the_cpu(device):
    vectors = Vectors.random(*((5000, 25_000) if device == "cuda" else (500, 2500)), 512)
    positives = Truth.annotated(vectors.image_of, len(vectors.images))
    how = {"fps_of_image": 100, "fps_of_caption": 20}
    expected = rank_both_ways(vectors.images, vectors.texts, positives, **how)
    found = rank_both_ways(vectors.images, vectors.texts, positives, device=device, **how)
    for one, other in zip(found, expected, strict=True):
        for mine, theirs in zip(astuple(one), astuple(other), strict=True):
            np.testing.assert_array_equal(mine, theirs)
