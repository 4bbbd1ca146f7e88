"""The towers over a batch: what they give beside the unit vectors."""

from __future__ import annotations

import pytest
import torch

from repair_hf.encoding import encode_batch
from repair_hf.preprocessing import Preprocessor


@pytest.mark.parametrize("in_chunks", [False, True])
def test_features_are_the_image_towers_own_before_the_projection(clip, clip_processor, in_chunks):
    """16 wide, where the projected vectors have 8."""
    preprocessor = Preprocessor(clip_processor, clip.config)
    pixels = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    tokens = preprocessor.texts(["a red circle", "a blue square", "a green triangle", "one circle"])
    texts = [preprocessor.text_inputs(tokens, group) for group in torch.arange(4).tensor_split(2)]
    images, _, features = encode_batch(
        clip, pixels, texts, preprocessor.normalize, once_more=clip, in_chunks=in_chunks, with_features=True
    )
    expected = clip.vision_model(pixel_values=preprocessor.normalize(pixels)).pooler_output
    torch.testing.assert_close(features, expected)
    projected = torch.nn.functional.normalize(clip.visual_projection(features), dim=1)
    torch.testing.assert_close(images, projected)
    features[:, 0].sum().backward()
    assert clip.vision_model.embeddings.patch_embedding.weight.grad.abs().sum() > 0
    assert clip.visual_projection.weight.grad is None and not clip.vision_model._forward_hooks
    assert len(encode_batch(clip, pixels, texts, preprocessor.normalize, once_more=clip, in_chunks=False)) == 2
