"""Losses of the baselines, and the objective that applies them to a batch.

Inputs are unit vectors, (B, D); an absent item is a vector of zeros. `groups` (B,) number the rows' groups: rows of
one group are no negatives of each other. At scale 0 each loss has a known value.

| loss | used by | at scale 0 |
|---|---|---|
| `negative_captions` | NegCLIP, SugarCrepe, La+SC; half of TripletCLIP | (ln 2B + ln B) / 2 |
| `triplet` | TripletCLIP | ln 2B + ln B |
| `union` | COCO-CF, CF+AL+La | ln 2B |
| `multi_positive` | StableRep | ln(n - 1) |
| `two_views` | SimCLR | ln(2B - 1) |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.training.objectives import Objective, Term, Vectors, gather, pick


def negative_captions(
    images: Tensor, texts: Tensor, negatives: Tensor, scale: Tensor, groups: Tensor | None = None
) -> Tensor:
    """InfoNCE with the batch's negative captions as further candidates of each image, as in NegCLIP.

    Captions choose among the B images only.
    """
    logits = scale * images.float() @ torch.cat([texts, negatives]).float().mT  # (B images, 2 B texts)
    absent = (~is_present(negatives)).expand(len(images), -1)
    hidden = torch.cat([together(groups, images), absent], 1)  # (B, 2 B)
    logits = logits.masked_fill(hidden, -torch.inf)
    truth = torch.arange(len(images), device=images.device)
    of_images = F.cross_entropy(logits, truth)
    return (of_images + F.cross_entropy(logits[:, : len(images)].mT, truth)) / 2


def triplet(
    images: Tensor,
    texts: Tensor,
    negative_images: Tensor,
    negative_texts: Tensor,
    scale: Tensor,
    groups: Tensor | None = None,
) -> Tensor:
    """TripletCLIP's sum of two terms: pairs against negative captions, and negative pairs against captions."""
    here = is_present(negative_images) & is_present(negative_texts)
    found = negative_captions(images, texts, negative_texts, scale, groups)
    if not here.any():
        return found
    groups = None if groups is None else groups[here]
    return found + negative_captions(negative_images[here], negative_texts[here], texts[here], scale, groups)


def union(
    images: Tensor,
    texts: Tensor,
    negative_images: Tensor,
    negative_texts: Tensor,
    scale: Tensor,
    groups: Tensor | None = None,
) -> Tensor:
    """InfoNCE over pairs and counterfactual pairs together."""
    here = is_present(negative_images) & is_present(negative_texts)
    known = together(groups, images)
    images, texts = torch.cat([images, negative_images[here]]), torch.cat([texts, negative_texts[here]])
    hidden = torch.block_diag(known, known[here][:, here])
    logits = (scale * images.float() @ texts.float().mT).masked_fill(hidden, -torch.inf)
    truth = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, truth) + F.cross_entropy(logits.mT, truth)) / 2


def multi_positive(vectors: Tensor, labels: Tensor, temperature: float, groups: Tensor | None = None) -> Tensor:
    """Cross-entropy of each vector against all others, with a uniform target over those of its own label (StableRep).

    A vector that is alone with its label adds 0 and counts in the mean. Shapes: `vectors` (n, D), the others
    (n,).
    """
    itself = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    target = (labels[:, None] == labels) & ~itself  # (n, n)
    hidden = itself | together(groups, vectors) & ~target
    logits = (vectors.float() @ vectors.float().mT / temperature).masked_fill(hidden, -torch.inf)
    weights = target / target.sum(1, keepdim=True).clamp(min=1)
    return -(weights * logits.log_softmax(1).masked_fill(hidden, 0.0)).sum(1).mean()


def two_views(one: Tensor, other: Tensor, temperature: float, groups: Tensor | None = None) -> Tensor:
    """SimCLR's NT-Xent: find the other view of an image among all other views, (B, D) each."""
    labels = torch.arange(len(one), device=one.device).repeat(2)
    groups = None if groups is None else groups.repeat(2)
    return multi_positive(torch.cat([one, other]), labels, temperature, groups)


def is_present(vectors: Tensor) -> Tensor:
    """Return which rows are not zeros: (B, D) to (B,)."""
    return (vectors != 0).any(1)


def together(groups: Tensor | None, like: Tensor) -> Tensor:
    """Return which rows are of one group, (B, B) without the diagonal; `like` (B, D) gives their number and device."""
    if groups is None:
        return torch.zeros(len(like), len(like), dtype=torch.bool, device=like.device)
    return (groups[:, None] == groups).fill_diagonal_(False)


def groups_of(inputs: dict[str, Any]) -> Tensor | None:
    """Return the groups of the anchors of all processes, as `SampleRows` gives them; None without groups."""
    return gather(inputs["wordings"][:, 0]) if "wordings" in inputs else None


class WithNegatives(Objective):
    """`negative_captions`, `triplet` or `union`, over anchors and negatives of all processes."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.loss = loss

    @classmethod
    def of(cls, loss: Callable[..., Tensor]) -> Callable[[DualEncoder], WithNegatives]:
        """Return a factory of the objective, the same for every retriever."""
        return lambda encoder: cls(loss)

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        images, texts = vectors.images[inputs["anchor_images"]], vectors.texts[inputs["anchor_texts"]]
        negative_images = pick(vectors.images, inputs["negative_images"])
        negative_texts = pick(vectors.texts, inputs["negative_texts"])
        parts = gather(torch.cat([images, texts, negative_images, negative_texts], 1)).chunk(4, 1)
        if self.loss is negative_captions:
            parts = parts[0], parts[1], parts[3]
        return {"loss_global": Term(self.loss(*parts, vectors.scale, groups_of(inputs)))}


def projection_head(width: int, hidden: int, out: int) -> nn.Sequential:
    """SLIP's projection head: three layers with batch normalisation."""
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Linear(hidden, out),
    )
