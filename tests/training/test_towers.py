"""The towers over a batch: what they give beside the unit vectors."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils._python_dispatch import TorchDispatchMode

from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.training.towers import encode_batch

PIXELS = torch.randint(256, (6, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def groups(preprocessor: Preprocessor, n_groups: int) -> list:
    tokens = preprocessor.texts(["a red circle", "a blue square", "a green triangle", "one circle"] * 2)
    return [preprocessor.text_inputs(tokens, group) for group in torch.arange(8).tensor_split(n_groups)]


@pytest.mark.parametrize("in_chunks", [False, True])
def test_features_are_the_image_towers_own_before_the_projection(clip, preprocessor, in_chunks):
    """16 wide, where the projected vectors have 8."""
    texts = groups(preprocessor, 2)
    images, _, features = encode_batch(
        clip, PIXELS, texts, preprocessor.normalize, once_more=clip, in_chunks=in_chunks, with_features=True
    )
    expected = clip.vision_model(pixel_values=preprocessor.normalize(PIXELS)).pooler_output
    torch.testing.assert_close(features, expected)
    projected = torch.nn.functional.normalize(clip.visual_projection(features), dim=1)
    torch.testing.assert_close(images, projected)
    features[:, 0].sum().backward()
    assert clip.vision_model.embeddings.patch_embedding.weight.grad.abs().sum() > 0
    assert clip.visual_projection.weight.grad is None and not clip.vision_model._forward_hooks
    assert len(encode_batch(clip, PIXELS, texts, preprocessor.normalize, once_more=clip, in_chunks=False)) == 2


class Casts(TorchDispatchMode):
    """Counts how often weights become bfloat16."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.weights, self.count = {value.data_ptr() for value in model.parameters()}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default and found.dtype == torch.bfloat16:
            self.count += args[0].data_ptr() in self.weights
        return found


@pytest.fixture
def accelerator():
    """One in mixed precision. Its state is the process's, and other tests want it otherwise."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(mixed_precision="bf16", cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)


def test_in_mixed_precision_groups_share_one_copy_of_the_weights(clip, preprocessor, accelerator):
    wrapped = accelerator.prepare_model(clip)  # its forward is in mixed precision

    def encode(n_groups: int, **options):
        texts = groups(preprocessor, n_groups)
        with Casts(clip) as casts:
            found = encode_batch(wrapped, PIXELS, texts, preprocessor.normalize, once_more=wrapped, **options)
        clip.zero_grad()
        sum((vectors**3).sum() for vectors in found).backward()
        gradient = [weight.grad.flatten() for weight in clip.parameters() if weight.grad is not None]
        return casts.count, found, torch.cat(gradient)

    together = {"in_chunks": False, "autocast": accelerator.autocast}
    single, *_ = encode(1, **together)
    count, vectors, gradient = encode(4, **together)
    apart, plain, expected = encode(4, in_chunks=False)
    assert 0 < count == single and apart == 4 * single
    for one, other in zip(vectors, plain, strict=True):
        assert one.dtype == torch.float32 and torch.equal(one, other)
    assert (gradient - expected).norm() < 0.01 * expected.norm()  # what bfloat16 rounds
    assert encode(4, in_chunks=True, autocast=accelerator.autocast)[0] == 4 * single
