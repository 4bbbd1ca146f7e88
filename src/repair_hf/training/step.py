"""A training step: a list of pairs, one similarity matrix, one loss.

All pairs of a step, of all processes, make one matrix with images in rows and captions in columns. Its diagonal holds
the pairs themselves. Cells that are known to match are not visible (see `pairs.truth`).

| `loss` | what is compared |
|---|---|
| `batch` | all visible cells: anchors and the pairs beside them alike |
| `grid` | the anchors' visible cells; and, with a weight, the visible cells of each anchor's own pairs, its grid |
| `both` | all visible cells; and, with a weight, each grid |
| `none` | the anchors' visible cells |

A loss is a mean over pairs or grids. Each process computes the part of its own pairs, times the number of processes,
as open_clip does with `--local-loss --gather-with-grad`. So the mean over the processes is the loss, and the mean of
their gradients is its exact gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from repair_hf.pairs.truth import Truth
from repair_hf.training.options import WITH_GRID, GridMean, Loss

MAX_LOGIT_SCALE = math.log(100)


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
    batch: dict[str, Any] = field(default_factory=dict)  # this process's batch, see `PairCollator`
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
    return rows if world_size == 1 else _Gather.apply(rows.contiguous())  # type: ignore[no-untyped-call]


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


class Objective(nn.Module):
    """Map a step to the terms of its loss. Override `terms`."""

    weights: Mapping[str, float] = {}
    """Weights of terms in the loss; 1 for a term that is not named."""

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Return the terms by the names under which they are logged, () each.

        With several processes, the mean over them is the term: each returns the part of its own pairs, times the
        number of processes, or all return the whole.
        """
        raise NotImplementedError


class PairObjective(Objective):
    """Contrastive losses over the batch, over the grid of each anchor, or over both: the table above.

    Args:
        loss: One of the table.
        grid_weight: Weight of the grid loss, the paper's lambda; by default 1.
        grid_mean: Average the losses of the grids over the `grids` of the batch, as in the paper, or over all
            `anchors`: then an anchor without a grid counts as 0.
        sigmoid: Use SigLIP's loss instead of the softmax's.
    """

    def __init__(
        self,
        loss: Loss = "batch",
        grid_weight: float | None = None,
        grid_mean: GridMean = "grids",
        *,
        sigmoid: bool = False,
    ) -> None:
        super().__init__()
        self.loss, self.grid_mean = loss, grid_mean
        self.weights = {**self.weights, "loss_grid": 1.0 if grid_weight is None else grid_weight}
        self.sigmoid = sigmoid

    def terms(self, step: Step) -> dict[str, Tensor]:
        if self.loss in ("grid", "none"):  # the anchors alone
            local, all_pairs = step.local_grids[:, 0], step.grids[:, 0]
        else:
            local, all_pairs = step.local, torch.arange(len(step.images), device=step.images.device)
        terms = {"loss_global": self._global_loss(step, local, all_pairs)}
        if self.loss in WITH_GRID:
            terms["loss_grid"] = self._grid_loss(step)
        return terms

    def _global_loss(self, step: Step, local: Tensor, all_pairs: Tensor) -> Tensor:
        """Average the losses of pairs, (C,) places, of which `local`, (R,), are this process's own."""
        logits_per_image = step.logits(step.images[local], step.texts[all_pairs])  # (R, C)
        visible = step.may_compare(local, all_pairs)  # (R, C)
        first_local = (all_pairs < local[0]).sum()
        labels = first_local + torch.arange(len(local), device=local.device)  # (R,) columns of the own captions
        if self.sigmoid:
            losses = sigmoid_loss(logits_per_image, visible, labels)  # (R,)
        elif step.world_size == 1:
            losses = info_nce(logits_per_image, logits_per_image.mT, visible, visible.mT, labels)
        else:
            logits_per_text = step.logits(step.images[all_pairs], step.texts[local]).mT  # (R, C)
            visible_per_text = step.may_compare(all_pairs, local).mT  # (R, C)
            losses = info_nce(logits_per_image, logits_per_text, visible, visible_per_text, labels)
        losses = losses.where(step.is_pair[local], 0.0)
        return step.world_size * losses.sum() / step.is_pair[all_pairs].sum()

    def _grid_loss(self, step: Step) -> Tensor:
        """Average the losses of the grids. That of a grid is the mean over its pairs."""
        grids = step.local_grids  # (B, S) places of pairs
        is_there = grids >= 0  # (B, S)
        visible = step.may_compare(step.local, step.local)  # (L, L)
        places = (grids - step.local[0]).clamp(min=0)  # (B, S) among the local pairs; any where none is there
        visible = visible[places[:, :, None], places[:, None, :]]  # (B, S, S)
        visible = visible & is_there[:, :, None] & is_there[:, None, :]  # (B, S, S)
        logits = step.logits(step.images[grids], step.texts[grids])  # (B, S, S)
        labels = torch.arange(grids.shape[1], device=grids.device).expand_as(grids)  # (B, S)
        if self.sigmoid:
            losses = sigmoid_loss(logits, visible, labels)  # (B, S)
        else:
            losses = info_nce(logits, logits.mT, visible, visible.mT, labels)  # (B, S)
        is_pair = visible.diagonal(dim1=-2, dim2=-1)  # (B, S)
        grid_losses = losses.where(is_pair, 0.0).sum(1) / is_pair.sum(1)  # (B,)
        grid_losses = grid_losses.where(is_there.sum(1) > 1, 0.0)  # an anchor alone has no grid
        n_grids = ((step.grids >= 0).sum(1) > 1).sum().clamp(min=1)  # of all processes
        count = n_grids if self.grid_mean == "grids" else len(step.grids)
        return step.world_size * grid_losses.sum() / count


def info_nce(
    logits_per_image: Tensor,
    logits_per_text: Tensor,
    visible_per_image: Tensor,
    visible_per_text: Tensor,
    labels: Tensor,
) -> Tensor:
    """Return the symmetric cross-entropy of each pair: the mean of its image's and of its caption's.

    Shape:
        logits_per_image, visible_per_image: (..., R, C), images in rows. logits_per_text, visible_per_text:
        (..., R, C), captions in rows. labels: (..., R). Returns (..., R).
    """
    image_losses = cross_entropy(logits_per_image, visible_per_image, labels)
    text_losses = cross_entropy(logits_per_text, visible_per_text, labels)
    return (image_losses + text_losses) / 2


def cross_entropy(logits: Tensor, visible: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each row among its visible cells.

    Shape:
        logits, visible: (..., R, C). labels: (..., R), the column of each row's own cell. Returns (..., R); it means
        nothing where the own cell is not visible.
    """
    logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)  # not -inf: a row may be all hidden
    return F.cross_entropy(logits.movedim(-1, 1), labels, reduction="none")


def sigmoid_loss(logits: Tensor, visible: Tensor, labels: Tensor) -> Tensor:
    """Return SigLIP's loss of each image: is this its own caption, for all its visible cells.

    Shape:
        logits, visible: (..., R, C), the bias added. labels: (..., R), a column. Returns (..., R).

    Example:
        >>> cells = torch.ones(8, 8, dtype=torch.bool)
        >>> sigmoid_loss(torch.zeros(8, 8), cells, torch.arange(8)).mean()  # 8 ln 2
        tensor(5.5452)
    """
    is_own = F.one_hot(labels, logits.shape[-1]).bool()
    return -F.logsigmoid(torch.where(is_own, logits, -logits)).masked_fill(~visible, 0.0).sum(-1)
