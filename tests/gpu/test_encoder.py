"""Pixels and embeddings on a GPU equal the CPU's."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch

from repair_hf.encoder.dual_encoder import DualEncoder

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
