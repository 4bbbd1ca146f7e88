"""A training step: the pairs of an image and a caption that it compares, and their similarities.

All pairs of a step, of all processes, make one matrix with images in rows and captions in columns. Its diagonal holds
the pairs themselves. Cells that are known to match are not compared (see `pairs.truth`). Each process computes the
rows and columns of its own pairs, as open_clip does with `--local-loss --gather-with-grad`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from repair_hf.pairs.truth import Truth

MAX_LOGIT_SCALE = math.log(100)


def encode(
    model: nn.Module,
    batch: dict[str, Any],
    normalize: Callable[[Tensor], Tensor],
    *,
    inner: nn.Module,
    in_chunks: bool = False,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[Tensor, Tensor]:
    """Encode the distinct images and captions of a batch: (n_images, D) and (n_texts, D) unit vectors.

    There is one forward for each group of captions, with its share of the images. In chunks, a step needs the memory
    of one forward and has the same gradient: the loss needs the embeddings alone, and the backward pass computes the
    rest again (gradient caching: Gao et al., 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited
    Setup").

    Args:
        model: A dual encoder; under DDP, its wrapper.
        batch: What `PairCollator` returns.
        normalize: Turns uint8 pixels into `pixel_values`.
        inner: The model without the wrapper of DDP, which allows one forward for each backward.
        in_chunks: Keep the embeddings alone, and run each forward again in the backward pass.
        autocast: Context of the mixed precision, so that each weight is cast once. In chunks it is not used: the cast
            weights would stay in memory.
    """
    pixels, texts = batch["pixels"], batch["texts"]

    def forward(modules: list[nn.Module], images: Tensor, captions: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        module = modules.pop(0) if len(modules) > 1 else modules[0]  # an objective may run backward several times
        output = module(pixel_values=normalize(images), **captions)
        return output.image_embeds, output.text_embeds

    parts: list[tuple[Tensor, Tensor]] = []
    with nullcontext() if in_chunks else autocast():
        for images, captions in zip(pixels.tensor_split(len(texts)), texts, strict=True):
            modules = [inner if parts else model, inner]  # of this forward, and of its repetitions
            if in_chunks:
                parts.append(checkpoint(forward, modules, images, captions, use_reentrant=False))
            else:
                parts.append(forward(modules, images, captions))
    return torch.cat([images for images, _ in parts]), torch.cat([captions for _, captions in parts])


@dataclass(frozen=True)
class Step:
    """The P pairs of a training step, of all processes: those of A anchors, with at most S pairs each.

    L of the pairs, those of B anchors, are this process's own: the local ones.
    """

    images: Tensor  # (P, D) unit vectors; zeros where a pair has no image
    texts: Tensor  # (P, D)
    image_rows: Tensor  # (P,) rows of `truth`; -1 where a pair has no image
    text_rows: Tensor  # (P,)
    grids: Tensor  # (A, S) places of each anchor's pairs, first its own, then those beside it; -1 is none
    truth: Truth
    scale: Tensor  # () after exp
    bias: Tensor | None = None  # () of the logits, for the sigmoid loss
    batch: dict[str, Any] | None = None  # this process's batch, see `PairCollator`
    rank: int = 0
    world_size: int = 1

    @cached_property
    def local_grids(self) -> Tensor:
        """The grids of this process's anchors, (B, S)."""
        return self.grids.chunk(self.world_size)[self.rank]

    @cached_property
    def local(self) -> Tensor:
        """The places of this process's pairs, (L,). They are consecutive."""
        return self.local_grids[self.local_grids >= 0]

    @cached_property
    def anchors(self) -> Tensor:
        """The place of the anchor that each pair stands beside, (P,); an anchor's is its own."""
        return self.grids[:, :1].expand_as(self.grids)[self.grids >= 0]

    @cached_property
    def slots(self) -> Tensor:
        """The column of `grids` that each pair is in, (P,): 0 for an anchor."""
        columns = torch.arange(self.grids.shape[1], device=self.grids.device)
        return columns.expand_as(self.grids)[self.grids >= 0]

    @cached_property
    def is_pair(self) -> Tensor:
        """Which pairs have an image and a caption, (P,) bool. The others are only what these are compared with."""
        return (self.image_rows >= 0) & (self.text_rows >= 0)

    @cached_property
    def matrix(self) -> Tensor:
        """The logits of all pairs, (P, P), images in rows."""
        return self.logits(self.images, self.texts)

    @cached_property
    def visible(self) -> Tensor:
        """Which cells of `matrix` may be compared, (P, P) bool."""
        all_pairs = torch.arange(len(self.images), device=self.images.device)
        return self.may_compare(all_pairs, all_pairs)

    def logits(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return the logits of (..., R, D) images with (..., C, D) captions, (..., R, C)."""
        logits = self.scale * _at_least_float32(images) @ _at_least_float32(texts).mT
        return logits if self.bias is None else logits + self.bias

    def may_compare(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return which images may be compared with which captions: those of a pair, and those not known to match.

        Shape:
            images: (R,) places of pairs. texts: (C,). Returns (R, C) bool.
        """
        image_rows, text_rows = self.image_rows[images], self.text_rows[texts]
        are_there = (image_rows >= 0)[:, None] & (text_rows >= 0)
        are_pairs = (images[:, None] == texts) & are_there
        return are_there & ~self.truth.known(image_rows, text_rows) | are_pairs


def step_of(
    images: Tensor, texts: Tensor, batch: dict[str, Any], truth: Truth, scale: Tensor, bias: Tensor | None = None
) -> Step:
    """Join the pairs of all processes.

    Args:
        images: (n_images, D) embeddings of the batch's distinct images.
        texts: (n_texts, D) embeddings of its distinct captions.
        batch: What `PairCollator` returns: (B, S) pairs.
        truth: What is known to match.
        scale: Of the logits, after exp.
        bias: Of the logits.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    local_images = _pick(images, batch["images"].flatten())  # (B S, D)
    local_texts = _pick(texts, batch["captions"].flatten())  # (B S, D)
    local_rows = torch.stack([batch["image_rows"].flatten(), batch["text_rows"].flatten()], 1)  # (B S, 2)
    vectors = gather(torch.cat([local_images, local_texts], 1), world_size)  # (A S, 2 D)
    rows = gather(local_rows, world_size)  # (A S, 2)
    is_there = (rows >= 0).any(1)  # (A S,) P times True
    places = torch.where(is_there, is_there.cumsum(0) - 1, -1)  # (A S,)
    all_images, all_texts = vectors[is_there].chunk(2, 1)  # (P, D) each
    image_rows, text_rows = rows[is_there].unbind(1)  # (P,) each
    grids = places.view(-1, batch["images"].shape[1])  # (A, S)
    return Step(all_images, all_texts, image_rows, text_rows, grids, truth, scale, bias, batch, rank, world_size)


def gather(rows: Tensor, world_size: int) -> Tensor:
    """Concatenate the rows of all processes, as many each, and keep their gradient."""
    return rows if world_size == 1 else _Gather.apply(rows.contiguous())


class _Gather(torch.autograd.Function):
    """Concatenate; backward, a process gets the sum of what all processes ask of its rows."""

    # That of torch.distributed.nn is deprecated; seen with torch 2.13.

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


def _pick(vectors: Tensor, places: Tensor) -> Tensor:
    """Select rows of (n, D) vectors by (P,) places; a zero vector where the place is -1."""
    return vectors[places.clamp(min=0)].where((places >= 0)[:, None], 0.0)


def _at_least_float32(vectors: Tensor) -> Tensor:
    return vectors if vectors.dtype == torch.float64 else vectors.float()
