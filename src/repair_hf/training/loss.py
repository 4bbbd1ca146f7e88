"""The losses of a training step.

| `loss` | what is compared |
|---|---|
| `batch` | all visible cells: anchors and the pairs beside them alike |
| `grid` | the anchors' visible cells; and, with a weight, the visible cells of each anchor's own pairs, its grid |
| `both` | all visible cells; and, with a weight, each grid |
| `none` | the anchors' visible cells |

A loss is a mean over pairs, or over grids. Each process computes the part of its own pairs, times the number of
processes. So the mean over the processes is the loss, and the mean of their gradients is its exact gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repair_hf.runtime.options import UserError
from repair_hf.training.options import WITH_GRID, GridMean, Loss
from repair_hf.training.step import Step


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
