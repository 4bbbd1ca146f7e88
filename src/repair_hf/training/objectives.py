"""What a training step minimises: a batch's unit vectors in, named terms out.

In:  the vectors of a batch's distinct images and captions, and the index tensors that say who plays which part.
Out: `Term`s; the trainer adds them up by weight, and logs each.

`LocalGrids` is RePair's objective, L_global + grid_weight * L_grid. Two more take it apart, for ablations. Whoever trains with another
loss writes another `Objective`; no model, optimizer or device is known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from repair_hf.runtime.options import UserError
from repair_hf.training.gathering import gather
from repair_hf.training.losses import ContrastiveLoss, GridLoss

ITEMS = 2**20  # more than a process encodes in a step: keeps the items of several processes apart


@dataclass(frozen=True)
class Vectors:
    """What the two towers made of a batch.

    Shape:
        images: (n_images, D) and texts: (n_texts, D), unit length. scale: (), after exp. features: (n_images, F), what the image tower
        gives before its projection; only for an objective that `needs_features`.
    """

    images: Tensor
    texts: Tensor
    scale: Tensor
    features: Tensor | None = None


@dataclass(frozen=True)
class Term:
    """One part of the loss.

    Args:
        value: Its mean over what it counts.
        weight: What it counts in the loss.
        count: Over how many grids it is the mean; None for a mean over the batch. Where an optimizer step is cut into parts, this is
            what makes the sum of the parts' means the mean of the whole.
    """

    value: Tensor
    weight: float = 1.0
    count: Tensor | None = None


class Objective(nn.Module):
    """From a batch to the terms of its loss. Parameters of an objective are trained with the model, and not saved with it."""

    needs_features: ClassVar[bool] = False

    def prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Change a batch before it is encoded; an objective that looks at images in several ways adds them here."""
        return inputs

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        """The terms, by the names that they are logged under."""
        raise NotImplementedError


class LocalGrids(Objective):
    """L_global over the anchor pairs of all processes, and L_grid over each anchor's own grid where there are grids.

    Args:
        grid_weight: Lambda.
        mask_matches: Leave cells that are known to be true pairs out of the grids' softmaxes.
    """

    def __init__(self, grid_weight: float = 0.5, *, mask_matches: bool = True) -> None:
        super().__init__()
        self.grid_weight, self.mask_matches = grid_weight, mask_matches
        self.contrastive_loss, self.grid_loss = ContrastiveLoss(), GridLoss()

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        terms = {"loss_global": Term(self.contrastive_loss(*anchor_pairs(vectors, inputs), vectors.scale)["loss"])}
        if "grid_images" not in inputs:
            return terms
        matches = inputs["matches"] if self.mask_matches else None
        images, texts = vectors.images[inputs["grid_images"]], vectors.texts[inputs["grid_texts"]]  # (B, 3, D)
        found = self.grid_loss(images, texts, vectors.scale, inputs["present"], matches)
        return terms | {"loss_grid": Term(found["loss"], self.grid_weight, found["grids"])}


class GlobalMatrix(Objective):
    """InfoNCE over anchors and grid items alike: the paper's ablation "Full Matrix", in which the synthetic items enter the global batch.

    Our reading: slots 2 and 3 of every grid are pairs like any other, in one matrix with the anchors. A cell whose image and caption
    are a pair elsewhere in the matrix takes part in no softmax: hubs are the false positive of many anchors of a batch. Each process
    knows its own items alone, so an item that two of them hold counts as two.
    """

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        if "grid_images" not in inputs:
            return {"loss_global": Term(ContrastiveLoss()(*anchor_pairs(vectors, inputs), vectors.scale)["loss"])}
        ids = [
            torch.cat([inputs[f"anchor_{kind}"], inputs[f"grid_{kind}"][:, 1:].flatten()])
            for kind in ("images", "texts")
        ]  # (3 B,) each, -1 where absent
        images, texts = gather(torch.cat([pick(vectors.images, ids[0]), pick(vectors.texts, ids[1])], 1)).chunk(2, 1)
        offset = ITEMS * (dist.get_rank() if dist.is_initialized() else 0)
        image_ids, text_ids = (gather(torch.where(row >= 0, row + offset, -1).double()).long() for row in ids)  # (P,)
        here = image_ids >= 0
        images, texts, image_ids, text_ids = images[here], texts[here], image_ids[here], text_ids[here]
        many = int(text_ids.max()) + 1
        is_pair = torch.isin(image_ids[:, None] * many + text_ids, image_ids * many + text_ids)  # (P, P)
        hidden = is_pair & ~torch.eye(len(images), dtype=torch.bool, device=images.device)
        logits = (vectors.scale * images.float() @ texts.float().mT).masked_fill(hidden, -torch.inf)  # (P, P)
        truth = torch.arange(len(logits), device=logits.device)
        return {"loss_global": Term((F.cross_entropy(logits, truth) + F.cross_entropy(logits.mT, truth)) / 2)}


class HardNegativesOnly(Objective):
    """L_global, and push without pull: the paper's ablation "Hard Neg Only".

    Our reading: the grid keeps its hard negatives and loses the items opposite them. What is left is the anchor's image over
    [T_a, T_hn] and its caption over [I_a, I_hn], each a cross-entropy where that negative exists; their mean stands in L_grid's place.
    """

    def __init__(self, grid_weight: float = 0.5, *, mask_matches: bool = True) -> None:
        super().__init__()
        self.grid_weight, self.mask_matches = grid_weight, mask_matches
        self.contrastive_loss = ContrastiveLoss()

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        terms = {"loss_global": Term(self.contrastive_loss(*anchor_pairs(vectors, inputs), vectors.scale)["loss"])}
        if "grid_images" not in inputs:
            return terms
        images, texts = vectors.images[inputs["grid_images"]].float(), vectors.texts[inputs["grid_texts"]].float()
        present = inputs["present"][:, 1:]  # (B, 2)
        hidden = ~present
        if self.mask_matches:  # the anchor is known to match what it was taken for
            hidden = hidden | torch.stack([inputs["matches"][:, 0, 1], inputs["matches"][:, 2, 0]], 1)
        wrong = torch.stack([(images[:, 0] * texts[:, 1]).sum(1), (images[:, 2] * texts[:, 0]).sum(1)], 1)  # (B, 2)
        right = (images[:, 0] * texts[:, 0]).sum(1, keepdim=True)  # (B, 1)
        each = F.softplus(vectors.scale * (wrong - right)).where(~hidden, 0.0)  # a cross-entropy of two
        sides, is_grid = present.sum(1), present.any(1)  # (B,)
        grids = is_grid.sum()
        mean = (each.sum(1) / sides.clamp(min=1)).sum() / grids.clamp(min=1)
        return terms | {"loss_grid": Term(mean, self.grid_weight, grids)}


def anchor_pairs(vectors: Vectors, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The vectors of the anchors' images and captions, those of all processes: (B * processes, D) each."""
    images, texts = vectors.images[inputs["anchor_images"]], vectors.texts[inputs["anchor_texts"]]
    return gather(torch.cat([images, texts], 1)).chunk(2, 1)


def pick(vectors: Tensor, rows: Tensor) -> Tensor:
    """Rows of (n, D) vectors by (B,) places; a vector of zeros where the place is -1."""
    return vectors[rows.clamp(min=0)].where((rows >= 0)[:, None], 0.0)


def objective_of(negatives: str, grid_weight: float, known_matches: str) -> Objective:
    """The objective that the options of a training name."""
    mask_matches = known_matches == "masked"
    if negatives == "batch":
        return GlobalMatrix()
    kind = HardNegativesOnly if negatives == "alone" else LocalGrids
    return kind(grid_weight, mask_matches=mask_matches)


def attach(objective: Objective, model: nn.Module, *, processes: int) -> None:
    """Make an objective's own parameters part of the model, so that they are trained and stand in its checkpoints.

    Raises:
        UserError: If several processes train: gradients of what lies outside the model's forward would not be shared.
    """
    if next(objective.parameters(), None) is None:
        return
    if processes > 1:
        raise UserError(
            f"{type(objective).__name__} has parameters of its own, which {processes} processes would not share; train in one process."
        )
    model.objective = objective


def detach(model: nn.Module) -> None:
    """Take it away again: the finished model is a dual encoder and nothing else."""
    if "objective" in model._modules:
        del model.objective
