"""A training step: a list of pairs, one similarity matrix, one loss.

All pairs of a step, of all processes, make one matrix with images in rows and captions in columns. Its diagonal holds
the pairs themselves. Cells that are known to match are not visible (see `pairs.truth`).

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
from transformers import PreTrainedModel

from repair_hf.pairs.truth import Truth
from repair_hf.runtime.options import UserError
from repair_hf.training.config import RepairConfig
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
        found = modules.pop(0)(pixel_values=normalize(images), **captions)
        return found.image_embeds, found.text_embeds

    parts: list[tuple[Tensor, Tensor]] = []
    with nullcontext() if in_chunks else autocast():
        for images, captions in zip(pixels.tensor_split(len(texts)), texts, strict=True):
            modules = [inner if parts else model, inner]  # of this forward, and of its repetition
            if in_chunks:
                parts.append(checkpoint(forward, modules, images, captions, use_reentrant=False))
            else:
                parts.append(forward(modules, images, captions))
    return torch.cat([images for images, _ in parts]), torch.cat([captions for _, captions in parts])


@dataclass(frozen=True)
class Step:
    """The P pairs of a training step, of all processes."""

    images: Tensor  # (P, D) unit vectors; zeros where a pair has no image
    texts: Tensor  # (P, D)
    visible: Tensor  # (P, P) bool, images in rows: which cells may be compared
    anchors: Tensor  # (P,) the pair that each pair stands beside; an anchor's is its own place
    slots: Tensor  # (P,) 0 for an anchor, then the place beside it
    scale: Tensor  # () after exp
    bias: Tensor | None  # () of the logits, for the sigmoid loss
    batch: dict[str, Any]  # this process's batch, see `PairCollator`

    @cached_property
    def matrix(self) -> Tensor:
        """The logits, (P, P), images in rows."""
        logits = self.scale * self.images.float() @ self.texts.float().mT
        return logits if self.bias is None else logits + self.bias


def step_of(
    images: Tensor, texts: Tensor, batch: dict[str, Any], truth: Truth, scale: Tensor, bias: Tensor | None = None
) -> Step:
    """Join the pairs of all processes.

    Every process computes the whole loss, so the mean of the processes' gradients is its exact gradient.

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
    visible = ~truth.known(image_rows, text_rows)
    visible.fill_diagonal_(True)
    visible &= (image_rows >= 0)[:, None] & (text_rows >= 0)
    anchors = is_anchor.nonzero().flatten()[is_anchor.cumsum(0) - 1]
    all_images, all_texts = vectors[here].chunk(2, 1)
    return Step(all_images, all_texts, visible, anchors, slots, scale, bias, batch)


def gather(rows: Tensor) -> Tensor:
    """Concatenate the rows of all processes, as many each, and keep their gradient."""
    is_alone = not dist.is_initialized() or dist.get_world_size() == 1
    return rows if is_alone else _Gather.apply(rows)  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    """Concatenate the rows of all processes. Backward: sum the gradients from all processes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def _pick(vectors: Tensor, places: Tensor) -> Tensor:
    """Select rows of (n, D) vectors by (P,) places; a zero vector where the place is -1."""
    return vectors[places.clamp(min=0)].where((places >= 0)[:, None], 0.0)


class Objective(nn.Module):
    """Map a step to the terms of its loss. Override `forward`, or `terms` for a loss that needs embeddings."""

    weights: Mapping[str, float] = {}
    """Weights of terms in the loss; 1 for a term that is not named."""

    def forward(self, matrix: Tensor, visible: Tensor, anchors: Tensor) -> dict[str, Tensor]:
        """Return the terms by the names under which they are logged.

        Shape:
            matrix: (P, P) logits, images in rows. visible: (P, P) bool, which cells may be compared. anchors: (P,) the
            pair that each pair stands beside; an anchor's is its own place.
        """
        raise NotImplementedError

    def terms(self, step: Step) -> dict[str, Tensor]:
        """Return the terms of a step."""
        return self(step.matrix, step.visible, step.anchors)


class PairObjective(Objective):
    """The losses of the table above.

    Args:
        loss: One of the table.
        grid_weight: Weight of the grid loss, the paper's lambda.
        grid_mean: Average the losses of the grids over the `grids` of the batch, as in the paper, or over all
            `anchors`: then an anchor without a grid counts as 0.
        sigmoid: Use SigLIP's loss instead of the softmax's.
    """

    def __init__(
        self, loss: Loss = "both", grid_weight: float = 1.0, grid_mean: GridMean = "grids", *, sigmoid: bool = False
    ) -> None:
        super().__init__()
        self.loss, self.grid_mean, self.weights = loss, grid_mean, {**self.weights, "loss_grid": grid_weight}
        self.per_pair = sigmoid_loss if sigmoid else softmax_loss

    def forward(self, matrix: Tensor, visible: Tensor, anchors: Tensor) -> dict[str, Tensor]:
        is_anchor = anchors == torch.arange(len(anchors), device=anchors.device)
        cells = visible if self.loss in ("batch", "both") else visible & is_anchor & is_anchor[:, None]
        terms = {"loss_global": mean_over_pairs(self.per_pair(matrix, cells), cells)}
        if self.loss in ("grid", "both"):
            grids = grids_of(anchors)
            rows, columns, own = grids[:, :, None], grids[:, None, :], grids >= 0
            seen = visible[rows, columns] & own[:, :, None] & own[:, None, :]  # (A, S, S)
            each = mean_over_pairs(self.per_pair(matrix[rows, columns], seen), seen)  # (A,)
            has_grid = own.sum(1) > 1
            count = has_grid.sum().clamp(min=1) if self.grid_mean == "grids" else len(grids)
            terms["loss_grid"] = each.where(has_grid, 0.0).sum() / count
        return terms


def grids_of(anchors: Tensor) -> Tensor:
    """Return the grid of each anchor: its own place, then those of the pairs beside it, which follow it.

    Shape:
        anchors: (P,), see `Objective`. Returns (A, S); -1 where a grid has fewer than S pairs.
    """
    pairs = torch.arange(len(anchors), device=anchors.device)
    is_anchor, slots = anchors == pairs, pairs - anchors
    grids = pairs.new_full((int(is_anchor.sum()), int(slots.max()) + 1), -1)
    grids[is_anchor.cumsum(0) - 1, slots] = pairs
    return grids


def check_parameters(objective: Objective, model: nn.Module) -> None:
    """Raise an error for an objective with parameters outside the model, which would not be trained."""
    known = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) not in known for parameter in objective.parameters()):
        raise UserError(
            f"{type(objective).__name__} has parameters of its own, which would not be trained. Make them a part of "
            "the model while it trains."
        )


def check_model(model: PreTrainedModel, args: RepairConfig) -> bool:
    """Check that a model can be trained, and return whether it is trained with the sigmoid loss.

    Without that loss SigLIP's bias has no effect, and is frozen.

    Raises:
        UserError: If it has no logit scale, adapters already, or not the bias that `global_loss` needs.
    """
    name, parameters = type(model).__name__, dict(model.named_parameters())
    if any("lora_" in each for each in parameters):
        raise UserError("The model has an adapter. Give the adapter's folder, which is loaded merged into its base.")
    if "logit_scale" not in parameters:
        raise UserError(f"{name} has no `logit_scale`; a CLIP- or SigLIP-like dual encoder has one.")
    if args.global_loss == "sigmoid" and "logit_bias" not in parameters:
        raise UserError(f"`global_loss` sigmoid needs a `logit_bias`, which {name} lacks; leave it out.")
    sigmoid = "logit_bias" in parameters and args.global_loss != "softmax"
    if "logit_bias" in parameters:
        parameters["logit_bias"].requires_grad_(sigmoid)
    return sigmoid


def softmax_loss(matrix: Tensor, visible: Tensor) -> Tensor:
    """Return the symmetric cross-entropy (InfoNCE) of each pair over visible cells: of its row, and of its column.

    A pair whose own cell is not visible has no loss; what is returned for it means nothing.

    Shape:
        matrix, visible: (..., P, P). Returns (..., P).

    Example:
        >>> softmax_loss(torch.zeros(8, 8), torch.ones(8, 8, dtype=torch.bool)).mean()  # ln 8
        tensor(2.0794)
    """
    logits = matrix.masked_fill(~visible, torch.finfo(matrix.dtype).min)  # not -inf: a row may be all hidden
    return (logits.logsumexp(-1) + logits.logsumexp(-2)) / 2 - _diagonal(matrix)


def sigmoid_loss(matrix: Tensor, visible: Tensor) -> Tensor:
    """Return SigLIP's loss of each image: is this a pair, for all its visible cells.

    Shape:
        matrix, visible: (..., P, P), the bias added. Returns (..., P).

    Example:
        >>> sigmoid_loss(torch.zeros(8, 8), torch.ones(8, 8, dtype=torch.bool)).mean()  # 8 ln 2
        tensor(5.5452)
    """
    signs = 2 * torch.eye(matrix.shape[-1], device=matrix.device) - 1
    return -F.logsigmoid(signs * matrix).masked_fill(~visible, 0.0).sum(-1)


def mean_over_pairs(each: Tensor, visible: Tensor) -> Tensor:
    """Average the losses of the pairs, (..., P), whose own cell is visible: those that have an image and a caption."""
    is_pair = _diagonal(visible)
    return each.where(is_pair, 0.0).sum(-1) / is_pair.sum(-1)


def _diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1)
