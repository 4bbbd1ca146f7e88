"""A training step: a list of pairs, one similarity matrix, one loss.

All pairs of a step, of all processes, make one matrix with images in rows and captions in columns. Its diagonal holds
the pairs themselves. Cells that are known to match are not visible (see `pairs.truth`). Each process computes the rows
and columns of its own pairs, as open_clip does with `--local-loss --gather-with-grad`.

| `loss` | what is compared |
|---|---|
| `batch` | all visible cells: anchors and the pairs beside them alike |
| `grid` | the anchors' visible cells; and, with a weight, the visible cells of each anchor's own pairs, its grid |
| `both` | all visible cells; and, with a weight, each grid |
| `none` | the anchors' visible cells |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from repair_hf.pairs.truth import Truth
from repair_hf.runtime.options import UserError
from repair_hf.training.gathering import gather
from repair_hf.training.options import GridMean, Loss

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
        one = modules.pop(0) if len(modules) > 1 else modules[0]  # an objective may run backward several times
        found = one(pixel_values=normalize(images), **captions)
        return found.image_embeds, found.text_embeds

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
    """The P pairs of a training step, of all processes, L of them this process's own.

    A loss is a mean over all pairs. Each process computes the part of its own pairs, times the number of processes.
    So the mean over the processes is the loss, and the mean of their gradients is its exact gradient.
    """

    images: Tensor  # (P, D) unit vectors; zeros where a pair has no image
    texts: Tensor  # (P, D)
    image_rows: Tensor  # (P,) rows of `truth`; -1 where a pair has no image
    text_rows: Tensor  # (P,)
    anchors: Tensor  # (P,) the pair that each pair stands beside; an anchor's is its own place
    slots: Tensor  # (P,) 0 for an anchor, then the place beside it
    own: Tensor  # (L,) places of this process's pairs; they are consecutive
    processes: int
    truth: Truth
    scale: Tensor  # () after exp
    bias: Tensor | None  # () of the logits, for the sigmoid loss
    batch: dict[str, Any]  # this process's batch, see `PairCollator`

    @cached_property
    def matrix(self) -> Tensor:
        """The logits of all pairs, (P, P), images in rows."""
        return self.logits(self.images, self.texts)

    @cached_property
    def visible(self) -> Tensor:
        """Which cells of `matrix` may be compared, (P, P) bool: pairs, and those not known to match."""
        every = torch.arange(len(self.anchors), device=self.anchors.device)
        return self.seen(every, every)

    def logits(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return the logits of (..., R, D) images with (..., C, D) captions, (..., R, C)."""
        found = self.scale * images.float() @ texts.float().mT
        return found if self.bias is None else found + self.bias

    def seen(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return which of some pairs' images, (R,), and captions, (C,), may be compared, (R, C) bool."""
        image_rows, text_rows = self.image_rows[images], self.text_rows[texts]
        there = (image_rows >= 0)[:, None] & (text_rows >= 0)
        own = (images[:, None] == texts) & there
        return there & ~self.truth.known(image_rows, text_rows) | own


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
    at_image, at_text = batch["images"].flatten(), batch["captions"].flatten()  # (B S,)
    vectors = gather(torch.cat([_pick(images, at_image), _pick(texts, at_text)], 1))
    slots = torch.arange(batch["images"].shape[1], device=at_image.device).expand_as(batch["images"])
    rows = gather(torch.stack([batch["image_rows"].flatten(), batch["text_rows"].flatten(), slots.flatten()], 1))
    here = (rows[:, :2] >= 0).any(1)
    image_rows, text_rows, slots = rows[here].unbind(1)  # (P,) each
    is_anchor = slots == 0
    anchors = is_anchor.nonzero().flatten()[is_anchor.cumsum(0) - 1]
    rank, processes = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    owner = torch.arange(len(rows), device=rows.device) // len(at_image)
    own = (owner[here] == rank).nonzero().flatten()
    all_images, all_texts = vectors[here].chunk(2, 1)
    pairs = all_images, all_texts, image_rows, text_rows, anchors, slots
    return Step(*pairs, own, processes, truth, scale, bias, batch)


def _pick(vectors: Tensor, places: Tensor) -> Tensor:
    """Select rows of (n, D) vectors by (P,) places; a zero vector where the place is -1."""
    return vectors[places.clamp(min=0)].where((places >= 0)[:, None], 0.0)


class Objective(nn.Module):
    """Map a step to the terms of its loss. Override `terms`."""

    weights: Mapping[str, float] = {}
    """Weights of terms in the loss; 1 for a term that is not named."""

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Return the terms by the names under which they are logged, () each.

        With several processes, the mean over them is the term: each returns the part of its own pairs, see `Step`, or
        all return the whole.
        """
        raise NotImplementedError


def check_parameters(objective: nn.Module, model: nn.Module) -> None:
    """Raise an error for an objective with parameters outside the model, which would not be trained."""
    known = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) not in known for parameter in objective.parameters()):
        raise UserError(
            f"{type(objective).__name__} has parameters of its own, which would not be trained. Make them a part of "
            "the model while it trains."
        )


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
        everything, own = torch.arange(len(step.anchors), device=step.own.device), step.own
        if self.loss in ("grid", "none"):
            everything, own = everything[step.slots == 0], own[step.slots[own] == 0]
        seen = step.seen(own, everything)
        terms = {"loss_global": self._over_pairs(step, own, everything, seen)}
        if self.loss == "both":  # its cells hold the grids
            terms["loss_grid"] = self._over_grids(step, seen, step.own)
        elif self.loss == "grid":
            terms["loss_grid"] = self._over_grids(step, step.seen(step.own, step.own), step.own - step.own[0])
        return terms

    def _over_pairs(self, step: Step, own: Tensor, others: Tensor, seen: Tensor) -> Tensor:
        """Average over pairs the losses of some own pairs, (R,), among others, (C,); `seen` are cells, (R, C)."""
        rows = step.logits(step.images[own], step.texts[others]), seen
        columns = rows
        if len(own) < len(others) and not self.sigmoid:  # with one process, rows and columns are those of one matrix
            columns = step.logits(step.images[others], step.texts[own]), step.seen(others, own)
        is_pair = (step.image_rows >= 0) & (step.text_rows >= 0)
        each = self._each(rows, columns, torch.searchsorted(others, own)).where(is_pair[own], 0.0)  # (R,)
        return step.processes * each.sum() / is_pair[others].sum()

    def _over_grids(self, step: Step, seen: Tensor, column: Tensor) -> Tensor:
        """Average the losses of the grids of this process's anchors.

        `seen` has a row for each own pair; `column` is the place of its caption there, (L,).
        """
        own, anchors = step.own, step.anchors[step.own] - step.own[0]
        grids = grids_of(anchors)  # (A, S) places among the own pairs
        is_there = grids >= 0
        cells = seen[grids[:, :, None], column[grids][:, None, :]] & is_there[:, :, None] & is_there[:, None, :]
        grid = step.logits(step.images[own[grids]], step.texts[own[grids]]), cells  # (A, S, S) each
        is_pair = cells.diagonal(dim1=-2, dim2=-1)
        places = torch.arange(grids.shape[1], device=grids.device).expand_as(grids)
        each = self._each(grid, grid, places).where(is_pair, 0.0).sum(1) / is_pair.sum(1)  # (A,)
        each = each.where(is_there.sum(1) > 1, 0.0)
        sizes = step.anchors.bincount()  # of the grids of all processes; 0 for pairs that are no anchors
        count = (sizes > 1).sum().clamp(min=1) if self.grid_mean == "grids" else (sizes > 0).sum()
        return step.processes * each.sum() / count

    def _each(self, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor], own: Tensor) -> Tensor:
        """Return the loss of each pair, from its image's row and its caption's column: logits, and whether visible.

        `own` is its place in both.
        """
        if self.sigmoid:
            return sigmoid_loss(*rows, own)
        logits, visible = columns
        return (cross_entropy(*rows, own) + cross_entropy(logits.mT, visible.mT, own)) / 2


def grids_of(anchors: Tensor) -> Tensor:
    """Return the grid of each anchor: its own place, then those of the pairs beside it, which follow it.

    Shape:
        anchors: (P,), see `Step`. Returns (A, S); -1 where a grid has fewer than S pairs.
    """
    pairs = torch.arange(len(anchors), device=anchors.device)
    is_anchor, slots = anchors == pairs, pairs - anchors
    grids = pairs.new_full((int(is_anchor.sum()), int(slots.max()) + 1), -1)
    grids[is_anchor.cumsum(0) - 1, slots] = pairs
    return grids


def cross_entropy(logits: Tensor, visible: Tensor, own: Tensor) -> Tensor:
    """Return the cross-entropy of each row's own cell among its visible ones.

    Shape:
        logits, visible: (..., R, C). own: (..., R), a column. Returns (..., R); it means nothing where the own cell is
        not visible.
    """
    seen = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)  # not -inf: a row may be all hidden
    return F.cross_entropy(seen.movedim(-1, 1), own, reduction="none")


def sigmoid_loss(logits: Tensor, visible: Tensor, own: Tensor) -> Tensor:
    """Return SigLIP's loss of each image: is this its own caption, for all its visible cells.

    Shape:
        logits, visible: (..., R, C), the bias added. own: (..., R), a column. Returns (..., R).

    Example:
        >>> cells = torch.ones(8, 8, dtype=torch.bool)
        >>> sigmoid_loss(torch.zeros(8, 8), cells, torch.arange(8)).mean()  # 8 ln 2
        tensor(5.5452)
    """
    is_own = F.one_hot(own, logits.shape[-1]).bool()
    return -F.logsigmoid(torch.where(is_own, logits, -logits)).masked_fill(~visible, 0.0).sum(-1)
