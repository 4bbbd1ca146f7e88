"""Pixels, embeddings and mined false positives on a GPU equal the CPU's, and a sorted float64 matrix."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import astuple

import numpy as np
import pytest
import torch

from benchmarks.common import Vectors
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.mining.ranking import rank_both_ways
from repair_hf.pairs.truth import Truth
from tests.mining.embeddings import COLLECTIONS, check

pytestmark = pytest.mark.gpu


def test_pixels_are_those_of_the_models_own_processor_to_the_bit(device, encoder, pairs):
    images = pairs.images["image"][:8]
    found = encoder.preprocessor.normalize(encoder.preprocessor.images(images).to(device))
    expected = encoder.preprocessor.processor.image_processor(images, return_tensors="pt")["pixel_values"]
    assert found.device.type == device
    assert torch.equal(found.cpu(), expected)


# cuDNN multiplies the patches in TF32 by default, so float32 on a GPU has 10 bits there.
@pytest.mark.parametrize(("precision", "apart"), [("fp32", 2e-3), ("bf16", 2e-2), ("fp16", 5e-3)])
def test_embeddings_are_those_of_the_cpu(precision, apart, device, encoder, pairs):
    if (device, precision) == ("cpu", "fp16"):
        pytest.skip("fp16 needs a GPU")
    model, how = deepcopy(encoder.model), {"batch_size": 64}
    here = DualEncoder(model, encoder.preprocessor, device=device, precision=precision, **how).embed_pairs(pairs)
    on_cpu = DualEncoder(model.cpu(), encoder.preprocessor, device="cpu", **how).embed_pairs(pairs)
    for found, expected in zip(here, on_cpu, strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=apart)
        assert (found * expected).sum(1).min() > 1 - apart


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
