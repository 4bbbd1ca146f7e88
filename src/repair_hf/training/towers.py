"""Both towers over the distinct items of a training batch, whole or in chunks.

In:  a dual encoder, pixels, groups of captions.
Out: unit vectors with their gradient. In chunks the memory of a step is that of one chunk, and the gradient the same:
     the loss needs the vectors alone, so all else is made again in the backward (gradient caching: Gao et al., 2021,
     "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def encode_batch(
    model: nn.Module,
    pixels: Tensor,
    texts: list[dict[str, Tensor]],
    normalize: Callable[[Tensor], Tensor],
    *,
    once_more: nn.Module,
    in_chunks: bool,
    with_features: bool = False,
    autocast: Callable[[], AbstractContextManager] = nullcontext,
) -> tuple[Tensor, ...]:
    """One forward per group of captions, with its share of the images.

    Args:
        model: What the first forward goes through; under DDP, its wrapper.
        pixels: All images of the batch.
        texts: The captions' groups: `input_ids` and, where the model needs one, `attention_mask`.
        normalize: From uint8 pixels to `pixel_values`.
        once_more: What all other forwards go through. DDP meets one forward per backward, for its processes may hold
            different numbers of groups: after the first, its inner model.
        in_chunks: Keep only the vectors of each forward, and run it again in the backward.
        with_features: Give the image tower's features before its projection too.
        autocast: Makes the mixed precision that the model's forward is in. Around all groups together, each weight is cast once, and
            not once a group; not so in chunks, where no copy of the weights shall stay.

    Shape:
        pixels: (n_images, 3, H, W) uint8. texts: (n, L) each, n_texts rows in all. Returns (n_images, D), (n_texts, D), and if
        asked for (n_images, F).
    """
    modules = [model, *[once_more] * (len(texts) - 1)]
    pieces = zip(modules, pixels.tensor_split(len(texts)), texts, strict=True)
    with nullcontext() if in_chunks else autocast():
        found = [
            _encode([module, once_more], *piece, normalize, in_chunks, with_features) for module, *piece in pieces
        ]
    return tuple(torch.cat(parts) for parts in zip(*found, strict=True))


def _encode(
    modules: list[nn.Module],
    pixels: Tensor,
    texts: dict[str, Tensor],
    normalize: Callable[[Tensor], Tensor],
    in_chunks: bool,
    with_features: bool,
) -> tuple[Tensor, ...]:
    turns = iter(modules)  # the forward, and the same once more in the backward

    def forward() -> tuple[Tensor, ...]:
        with _tapped(modules[-1]) if with_features else nullcontext([]) as features:
            found = next(turns)(pixel_values=normalize(pixels), **texts)
        return found.image_embeds, found.text_embeds, *features

    return checkpoint(forward, use_reentrant=False) if in_chunks and torch.is_grad_enabled() else forward()


@contextmanager
def _tapped(model: nn.Module) -> Iterator[list[Tensor]]:
    """Gets what the image tower gives: in the model's output, the projected vector has taken its place."""
    features: list[Tensor] = []
    hook = model.vision_model.register_forward_hook(lambda tower, given, found: features.append(found.pooler_output))
    try:
        yield features
    finally:
        hook.remove()
