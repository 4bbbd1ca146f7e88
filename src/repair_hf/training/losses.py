"""The two parts of the training loss, `L = L_global + grid_weight * L_grid`, as functions of unit vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ContrastiveLoss(nn.Module):
    """Symmetric InfoNCE: each image against the batch's texts, and each text against its images.

    Cells of `hidden`, (B, B) bool, are masked out.

    Shape:
        images, texts: (B, D); row b of one belongs to row b of the other. scale: (). Returns scalar `loss`.

    Example:
        >>> ContrastiveLoss()(torch.zeros(8, 4), torch.zeros(8, 4), torch.tensor(100.0))["loss"]  # ln 8
        tensor(2.0794)
    """

    def forward(self, images: Tensor, texts: Tensor, scale: Tensor, hidden: Tensor | None = None) -> dict[str, Tensor]:
        logits = scale * images.float() @ texts.float().mT  # (B images, B texts)
        if hidden is not None:
            logits = logits.masked_fill(hidden, -torch.inf)
        truth = torch.arange(len(logits), device=logits.device)  # (B,)
        return {"loss": (F.cross_entropy(logits, truth) + F.cross_entropy(logits.mT, truth)) / 2}


class SigmoidLoss(nn.Module):
    """SigLIP's loss: each image and text of a batch is a yes-or-no question, is this a pair?

    Cells of `hidden`, (B, B) bool, are left out. The loss is the sum over the texts of an image, averaged over images.

    Shape:
        images, texts: (B, D); row b of one belongs to row b of the other. scale, bias: (). Returns scalar `loss`.

    Example:
        >>> SigmoidLoss()(torch.zeros(8, 4), torch.zeros(8, 4), torch.tensor(9.0), torch.tensor(0.0))["loss"]  # 8 ln 2
        tensor(5.5452)
    """

    def forward(
        self, images: Tensor, texts: Tensor, scale: Tensor, bias: Tensor, hidden: Tensor | None = None
    ) -> dict[str, Tensor]:
        logits = scale * images.float() @ texts.float().mT + bias  # (B images, B texts)
        signs = 2 * torch.eye(len(logits), device=logits.device) - 1
        each = -F.logsigmoid(signs * logits)
        return {"loss": (each if hidden is None else each.masked_fill(hidden, 0.0)).sum() / len(logits)}


class GridLoss(nn.Module):
    """Cross-entropy within each anchor's own grid; the diagonal holds the true pairs.

    Cells of an absent slot are masked out of the loss and get no gradient. The loss of a grid is the mean over its
    diagonal of the row's and the column's cross-entropy. The loss is the mean over the grids with at least two slots;
    without any it is a 0 that can be backpropagated.

    Args of the call:
        present: Which slots exist; by default all.
        matches: Off-diagonal cells known to be true pairs; masked out of the loss too. By default none.

    Shape:
        images, texts: (B, 3, D). scale: (). present: (B, 3) bool. matches: (B, 3, 3) bool, images in rows.
        Returns scalars `loss` and `grids` (how many grids it is the mean of).
    """

    def forward(
        self,
        images: Tensor,
        texts: Tensor,
        scale: Tensor,
        present: Tensor | None = None,
        matches: Tensor | None = None,
    ) -> dict[str, Tensor]:
        logits = scale * torch.einsum("bid,bjd->bij", images.float(), texts.float())  # (B, 3 images, 3 texts)
        if present is None:
            present = logits.new_ones(logits.shape[:2], dtype=torch.bool)  # (B, 3)
        diagonal = torch.eye(logits.shape[1], dtype=torch.bool, device=logits.device)
        absent = ~(present.unsqueeze(2) & present.unsqueeze(1))  # (B, 3, 3)
        hidden = absent if matches is None else absent | (matches & ~diagonal)
        # An absent slot keeps only its diagonal cell, a constant: softmax 1, loss 0, no gradient, no nan.
        logits = logits.masked_fill(hidden, -torch.inf).masked_fill(absent & diagonal, 0.0)
        rows = logits.log_softmax(2).diagonal(dim1=1, dim2=2)  # (B, 3)
        columns = logits.log_softmax(1).diagonal(dim1=1, dim2=2)  # (B, 3)
        slots = present.sum(1)  # (B,)
        each = -(rows + columns).sum(1) / (2 * slots.clamp(min=1))  # (B,)
        is_grid = slots >= 2  # (B,)
        grids = is_grid.sum()
        return {"loss": each.where(is_grid, 0.0).sum() / grids.clamp(min=1), "grids": grids}
