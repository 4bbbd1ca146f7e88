"""Training objectives: from a batch's unit vectors to named terms of the loss.

The trainer sums the terms by weight and logs each. `GlobalMatrix` is the default, `LocalGrids` the paper's objective,
and `HardNegativesOnly` one of its ablations. Another loss is another `Objective`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from repair_hf.runtime.options import UserError
from repair_hf.training.adapters import has_adapters
from repair_hf.training.losses import ContrastiveLoss, GridLoss, SigmoidLoss


@dataclass(frozen=True)
class Vectors:
    """The embeddings of a batch's distinct items."""

    images: Tensor  # (n_images, D), unit length
    texts: Tensor  # (n_texts, D), unit length
    scale: Tensor  # (), after exp
    features: Tensor | None = None  # (n_images, F) before the projection, for an objective that `needs_features`
    bias: Tensor | None = None  # () of the logits, for an objective that `needs_bias`


@dataclass(frozen=True)
class Term:
    """One part of the loss.

    The trainer needs the count to average over all grids of an optimizer step that is split into several batches.
    """

    value: Tensor  # a mean over grids, or over the batch
    weight: float = 1.0
    count: Tensor | None = None  # number of grids that `value` averages; None for a mean over the batch


class Objective(nn.Module):
    """Map a batch to the terms of its loss. Parameters of an objective are trained with the model, but not saved."""

    needs_features: ClassVar[bool] = False
    needs_bias: bool = False  # trains the model's `logit_bias`: its L_global is the sigmoid loss

    def prepare(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Change a batch before it is encoded, for example to add augmented images."""
        return inputs

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        """Return the terms by the names under which they are logged."""
        raise NotImplementedError


class LocalGrids(Objective):
    """L_global over the pairs of all processes, and `grid_weight` times L_grid over each anchor's own grid.

    The pairs of L_global are the anchors and, if the batch has `pair_images`, edits with their queries. With
    `mask_matches`, cells that are known to be true pairs are masked out of L_grid.
    """

    def __init__(self, grid_weight: float = 0.5, *, mask_matches: bool = True, needs_bias: bool = False) -> None:
        super().__init__()
        self.grid_weight, self.mask_matches, self.needs_bias = grid_weight, mask_matches, needs_bias

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        terms = {"loss_global": global_loss(vectors, inputs)}
        if "grid_images" not in inputs:
            return terms
        matches = inputs["matches"] if self.mask_matches else None
        images, texts = vectors.images[inputs["grid_images"]], vectors.texts[inputs["grid_texts"]]  # (B, 3, D)
        found = self.grid_loss(images, texts, vectors.scale, inputs["present"], matches)
        return terms | {"loss_grid": Term(found["loss"], self.grid_weight, found["grids"])}

    def grid_loss(
        self, images: Tensor, texts: Tensor, scale: Tensor, present: Tensor, matches: Tensor | None
    ) -> dict[str, Tensor]:
        """Compute L_grid as `GridLoss` does."""
        return GridLoss()(images, texts, scale, present, matches)


class GlobalMatrix(Objective):
    """InfoNCE over anchors and edits in one matrix: the default; on the paper's grids its ablation "Full Matrix".

    Slots 2 and 3 of every grid are pairs like the anchors.
    """

    def __init__(self, *, needs_bias: bool = False) -> None:
        super().__init__()
        self.needs_bias = needs_bias

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        return {"loss_global": global_loss(vectors, inputs)}


class HardNegativesOnly(LocalGrids):
    """L_global, and a push from hard negatives without a pull: the paper's ablation "Hard Neg Only".

    Our reading: the grid keeps its hard negatives without the items opposite them. The anchor's image is compared with
    [T_a, T_hn] and its caption with [I_a, I_hn], where these negatives exist. The mean of both cross-entropies is
    used as L_grid.
    """

    def grid_loss(
        self, images: Tensor, texts: Tensor, scale: Tensor, present: Tensor, matches: Tensor | None
    ) -> dict[str, Tensor]:
        """Compute the mean of both cross-entropies."""
        images, texts, present = images.float(), texts.float(), present[:, 1:]  # (B, 3, D), (B, 3, D), (B, 2)
        hidden = ~present
        if matches is not None:  # the anchor is known to match its false positive
            hidden = hidden | torch.stack([matches[:, 0, 1], matches[:, 2, 0]], 1)
        wrong = torch.stack([(images[:, 0] * texts[:, 1]).sum(1), (images[:, 2] * texts[:, 0]).sum(1)], 1)  # (B, 2)
        right = (images[:, 0] * texts[:, 0]).sum(1, keepdim=True)  # (B, 1)
        each = F.softplus(scale * (wrong - right)).where(~hidden, 0.0)  # a cross-entropy of two
        sides, grids = present.sum(1), present.any(1).sum()  # (B,), ()
        return {"loss": (each.sum(1) / sides.clamp(min=1)).sum() / grids.clamp(min=1), "grids": grids}


def global_loss(vectors: Vectors, inputs: dict[str, Any]) -> Term:
    """Compute InfoNCE, or with a bias the sigmoid loss, over the anchors and, if the batch has them, further pairs.

    With further pairs, or groups, cells that are known to match are masked out: a hub is the false positive of many
    anchors.
    """
    if "wordings" not in inputs:
        return Term(_contrast(*anchor_pairs(vectors, inputs), vectors))
    n_anchors = len(inputs["anchor_images"])
    parts = ("anchor", "pair") if "pair_images" in inputs else ("anchor",)
    ids = [  # (B,) or (4 B,) each, -1 where absent
        torch.cat([inputs[f"{part}_{kind}"].reshape(n_anchors, -1) for part in parts], 1).flatten()
        for kind in ("images", "texts")
    ]
    images, texts = gather(torch.cat([pick(vectors.images, ids[0]), pick(vectors.texts, ids[1])], 1)).chunk(2, 1)
    here, wordings, answers = (  # (P,), (P,), (P, K)
        gather(column.long())
        for column in (ids[0] >= 0, inputs["wordings"].flatten(), inputs["answers"].flatten(0, 1))
    )
    images, texts, wordings, answers = (column[here.bool()] for column in (images, texts, wordings, answers))
    hidden = torch.zeros(len(images), len(images), dtype=torch.bool, device=images.device)  # (P images, P texts)
    for wording in answers.T:  # one at a time: (P, P, K) would be large
        hidden |= wording[:, None] == wordings
    return Term(_contrast(images, texts, vectors, hidden.fill_diagonal_(False)))


def _contrast(images: Tensor, texts: Tensor, vectors: Vectors, hidden: Tensor | None = None) -> Tensor:
    if vectors.bias is not None:
        return SigmoidLoss()(images, texts, vectors.scale, vectors.bias, hidden)["loss"]
    return ContrastiveLoss()(images, texts, vectors.scale, hidden)["loss"]


def anchor_pairs(vectors: Vectors, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the embeddings of the anchors' images and captions in all processes: (B * processes, D) each."""
    images, texts = vectors.images[inputs["anchor_images"]], vectors.texts[inputs["anchor_texts"]]
    images, texts = gather(torch.cat([images, texts], 1)).chunk(2, 1)
    return images, texts


def pick(vectors: Tensor, rows: Tensor) -> Tensor:
    """Select rows of (n, D) vectors by (B,) indices; a zero vector where the index is -1."""
    return vectors[rows.clamp(min=0)].where((rows >= 0)[:, None], 0.0)


class _Gather(torch.autograd.Function):
    """Concatenate the rows of all processes. Backward: sum the gradients from all processes."""

    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def gather(rows: Tensor) -> Tensor:
    """Concatenate the rows of all processes, as many each, and keep their gradient.

    Every process then computes the whole loss, and the mean of the processes' gradients is its exact gradient.
    """
    is_alone = not dist.is_initialized() or dist.get_world_size() == 1
    return rows if is_alone else _Gather.apply(rows)


def objective_of(negatives: str, grid_weight: float, known_matches: str, global_loss: str | None = None) -> Objective:
    """Create the objective that the options of a training name."""
    mask_matches, needs_bias = known_matches == "masked", global_loss == "sigmoid"
    if negatives == "batch":
        return GlobalMatrix(needs_bias=needs_bias)
    kind = HardNegativesOnly if negatives == "alone" else LocalGrids
    return kind(grid_weight, mask_matches=mask_matches, needs_bias=needs_bias)


def named(objective: Objective | None) -> dict[str, str]:
    """Name an objective that a caller gives, for the records of a run; the options name the others."""
    return {} if objective is None else {"objective": type(objective).__name__}


def attach(objective: Objective, model: nn.Module, *, processes: int) -> None:
    """Make an objective's own parameters part of the model, so that they are trained and stored in checkpoints.

    Raises:
        UserError: If several processes train: they do not share gradients of parameters outside the model's forward.
            Or if the model has adapters, which alone are saved.
    """
    if next(objective.parameters(), None) is None:
        return
    if processes > 1:
        raise UserError(
            f"{type(objective).__name__} has parameters of its own, whose gradients {processes} processes would not "
            "share. Train in one process."
        )
    if has_adapters(model):
        raise UserError(f"{type(objective).__name__} has parameters, which an adapter cannot keep. Train all weights.")
    model.objective = objective


def detach(model: nn.Module) -> None:
    """Remove an attached objective, so that the finished model is a plain dual encoder."""
    if isinstance(getattr(model, "objective", None), Objective):
        del model.objective
