"""Losses of the baselines that several use; the default is `PairObjective("batch")`.

There, a negative caption without an image is a candidate for each image, and looks for none itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from repair_hf.training.step import PairObjective, Step, cross_entropy


def softmax_loss(matrix: Tensor, visible: Tensor) -> Tensor:
    """Return the symmetric cross-entropy (InfoNCE) of each pair over visible cells: of its row, and of its column.

    A pair whose own cell is not visible has no loss; what is returned for it means nothing.

    Shape:
        matrix, visible: (..., P, P). Returns (..., P).

    Example:
        >>> softmax_loss(torch.zeros(8, 8), torch.ones(8, 8, dtype=torch.bool)).mean()  # ln 8
        tensor(2.0794)
    """
    own = torch.eye(matrix.shape[-1], dtype=torch.bool, device=matrix.device).expand_as(matrix)
    return (cross_entropy(matrix, visible, own) + cross_entropy(matrix.mT, visible.mT, own)) / 2


def mean_over_pairs(each: Tensor, visible: Tensor) -> Tensor:
    """Average the losses of the pairs, (..., P), whose own cell is visible: those that have an image and a caption."""
    is_pair = visible.diagonal(dim1=-2, dim2=-1)
    return each.where(is_pair, 0.0).sum(-1) / is_pair.sum(-1)


def anchor_loss(step: Step) -> Tensor:
    """Return InfoNCE over the anchors, or for a model with a bias the sigmoid loss."""
    return PairObjective("none", sigmoid=step.bias is not None).terms(step)["loss_global"]


def alike(step: Step) -> Tensor:
    """Return which images are known to match the captions of each other's anchors, (P, P) bool."""
    known = ~step.visible[:, step.anchors]
    return known | known.mT


def multi_positive(vectors: Tensor, labels: Tensor, temperature: float, known: Tensor | None = None) -> Tensor:
    """Cross-entropy of each vector against all others, with a uniform target over those of its own label (StableRep).

    A vector that is alone with its label adds 0 and counts in the mean.

    Args:
        vectors: (n, D).
        labels: (n,).
        temperature: The logits are cosines divided by it.
        known: (n, n) bool, vectors that are no negatives of each other.
    """
    itself = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    target = (labels[:, None] == labels) & ~itself  # (n, n)
    hidden = itself if known is None else itself | known & ~target
    logits = (vectors.float() @ vectors.float().mT / temperature).masked_fill(hidden, -torch.inf)
    weights = target / target.sum(1, keepdim=True).clamp(min=1)
    return -(weights * logits.log_softmax(1).masked_fill(hidden, 0.0)).sum(1).mean()


def two_views(one: Tensor, other: Tensor, temperature: float, known: Tensor | None = None) -> Tensor:
    """SimCLR's NT-Xent: find the other view of an image among all other views, (B, D) each; `known` is (B, B)."""
    labels = torch.arange(len(one), device=one.device).repeat(2)
    return multi_positive(torch.cat([one, other]), labels, temperature, None if known is None else known.repeat(2, 2))
