"""Encode the distinct items of a training batch with both towers, at once or in chunks.

In chunks, a step needs the memory of one chunk and has the same gradient: the loss only needs the embeddings, and the
backward pass recomputes the rest (gradient caching: Gao et al., 2021, "Scaling Deep Contrastive Learning Batch Size
under Memory Limited Setup").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

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
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[Tensor, ...]:
    """Run one forward per group of captions, each with its share of the images.

    Args:
        model: The module of the first forward; under DDP, its wrapper.
        pixels: (n_images, 3, H, W) uint8, all images of the batch.
        texts: The groups of captions, (n, L) each: `input_ids` and, if the model needs it, `attention_mask`.
        normalize: Turns uint8 pixels into `pixel_values`.
        once_more: The module of all other forwards. DDP allows one forward per backward, and its processes may have
            different numbers of groups, so this is its inner model.
        in_chunks: Keep only the embeddings of each forward, and run it again in the backward.
        with_features: Return the image tower's features before its projection too.
        autocast: Context of the model's mixed precision. It spans all groups, so that each weight is cast once; in
            chunks it is not used, because the cast weights would stay in memory.

    Shape:
        Returns (n_images, D), (n_texts, D) and, with `with_features`, (n_images, F).
    """
    modules = [model, *[once_more] * (len(texts) - 1)]
    groups = zip(modules, pixels.tensor_split(len(texts)), texts, strict=True)
    with nullcontext() if in_chunks else autocast():
        found = [
            _encode([module, once_more], images, captions, normalize, in_chunks, with_features)
            for module, images, captions in groups
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
    turns = iter(modules)  # for the forward, and for its repetition in the backward

    def forward() -> tuple[Tensor, ...]:
        tap: AbstractContextManager[list[Tensor]] = _tapped(modules[-1]) if with_features else nullcontext([])
        with tap as features:
            found = next(turns)(pixel_values=normalize(pixels), **texts)
        return found.image_embeds, found.text_embeds, *features

    return checkpoint(forward, use_reentrant=False) if in_chunks and torch.is_grad_enabled() else forward()


@contextmanager
def _tapped(model: Any) -> Iterator[list[Tensor]]:
    """Collect the image tower's pooled output, which the model's output replaces by the projected vector."""
    features: list[Tensor] = []
    hook = model.vision_model.register_forward_hook(lambda tower, given, found: features.append(found.pooler_output))
    try:
        yield features
    finally:
        hook.remove()
