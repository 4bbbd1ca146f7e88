"""The losses of methods that `repair-hf train` does not have.

What is known to match is masked, and a negative caption without an image is a candidate for each image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.runtime.options import UserError
from repair_hf.training.step import Objective, PairObjective, Step, cross_entropy

HIDDEN, OUT, TEMPERATURE = 4096, 256, 0.1  # SLIP's head; SimCLR's and StableRep's temperature
SMALLEST = 384  # width of SLIP's smallest tower
HEAD, VIEWS = "two_views_head", 2


class Triplet(Objective):
    """TripletCLIP: InfoNCE of the anchors' images and of the negatives', summed as in the original.

    Images choose among all captions, and captions among the images of their own kind.
    """

    def terms(self, step: Step) -> dict[str, Tensor]:
        is_anchor = step.slots == 0
        halves = [step.visible & rows[:, None] for rows in (is_anchor, ~is_anchor)]
        losses = [mean_over_pairs(softmax_loss(step.matrix, cells), cells) for cells in halves if cells.any()]
        return {"loss_global": sum(losses[1:], losses[0])}


class MultiPositive(Objective):
    """StableRep: InfoNCE, and the multi-positive loss of each anchor's images, without a projection head."""

    def terms(self, step: Step) -> dict[str, Tensor]:
        found = multi_positive(step.images, step.anchors, TEMPERATURE, alike(step))
        return {"loss_global": anchor_loss(step), "loss_images": found}


class HardNegatives(Objective):
    """RePair's ablation: InfoNCE, and in the paper's grids the mean of two cross-entropies, or of the only one there.

    The anchor's image chooses between its caption and the caption that it was confused with, and its caption between
    its image and the image that it was confused with. What stands opposite these two, such as an edit, has no part.
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weights = {"loss_grid": weight}

    def terms(self, step: Step) -> dict[str, Tensor]:
        is_anchor, beside = step.slots == 0, step.anchors == step.anchors[:, None]
        own, matrix = step.visible & beside, step.matrix
        image = own & (step.slots != 2)  # an image's choice: slot 1 is (what fits T_hn, T_hn)
        text = own.mT & (step.slots != 1)  # a caption's choice: slot 2 is (I_hn, what fits I_hn)
        sides = ((image.sum(1) > 1).long() + (text.sum(1) > 1))[is_anchor]  # a choice of one is none, and its loss 0
        losses = _own_place(matrix, image, is_anchor) + _own_place(matrix.mT, text, is_anchor)
        found = (losses / sides.clamp(min=1)).sum() / (beside.sum(1) > 1)[is_anchor].sum().clamp(min=1)
        return {"loss_global": anchor_loss(step), "loss_grid": found}


def _own_place(logits: Tensor, cells: Tensor, rows: Tensor) -> Tensor:
    """Return the cross-entropy of some rows' own places among their cells, (A,)."""
    return logits.masked_fill(~cells, -torch.inf)[rows].logsumexp(1) - logits.diagonal()[rows]


class TwoViews(Objective, TrainerCallback):
    """SimCLR beside CLIP, as in SLIP: InfoNCE, and NT-Xent of two views on the features of the image tower.

    The head is SLIP's, narrower for a narrower tower. It is part of the model while it trains, then removed.
    """

    def __init__(self, encoder: DualEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        width = encoder.model.config.vision_config.hidden_size
        hidden = min(HIDDEN, HIDDEN * width // SMALLEST)
        layers: list[nn.Module] = []
        for before, after in ((width, hidden), (hidden, hidden)):
            layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
        self.head = nn.Sequential(*layers, nn.Linear(hidden, OUT))
        encoder.model.add_module(HEAD, self.head)

    def terms(self, step: Step) -> dict[str, Tensor]:
        originals = step.batch["pixels"][step.batch["images"][:, 0]]  # (B, 3, H, W)
        views = torch.cat([self.augment(originals) for _ in range(VIEWS)])
        vectors = F.normalize(self.head(self.features(views, step.batch).float()), dim=1)  # (2 B, OUT)
        one, other = vectors.chunk(VIEWS)
        anchors = step.local_grids[:, 0]  # views are of this process's images alone
        known = alike(step)[anchors][:, anchors]
        return {"loss_global": anchor_loss(step), "loss_views": two_views(one, other, TEMPERATURE, known)}

    def features(self, images: Tensor, batch: dict[str, Any]) -> Tensor:
        """Return the image tower's output before its projection, (n, F), by a forward of the whole model."""
        found: list[Tensor] = []
        one_caption = {name: ids[:1] for name, ids in batch["texts"][0].items()}
        model, normalize = self.encoder.model, self.encoder.preprocessor.normalize
        with model.vision_model.register_forward_hook(lambda tower, given, out: found.append(out.pooler_output)):
            model(pixel_values=normalize(images), **one_caption)
        return found[0]

    def augment(self, pixels: Tensor) -> Tensor:
        """Return a view of each image, (B, 3, H, W) uint8, by SLIP's crop, colors, grey, blur and mirror."""
        views = _views(*pixels.shape[2:])(pixels.float() / 255)
        return (255 * views).round().clamp(0, 255).to(torch.uint8)

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Raise a UserError for adapters, which alone are trained and saved."""
        if not all(parameter.requires_grad for parameter in self.head.parameters()):
            raise UserError("`simclr` has a head of its own, which is not trained with adapters. Train all weights.")

    def on_train_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Remove the head, so that the finished model is a plain dual encoder."""
        delattr(self.encoder.model, HEAD)


@cache
def _views(height: int, width: int) -> nn.Module:
    import kornia.augmentation as views

    blur = 2 * (min(height, width) // 20) + 1  # a tenth of the side, as in SimCLR
    return nn.Sequential(
        views.RandomResizedCrop((height, width), scale=(0.08, 1.0)),
        views.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        views.RandomGrayscale(p=0.2),
        views.RandomGaussianBlur((blur, blur), (0.1, 2.0), p=0.5),
        views.RandomHorizontalFlip(p=0.5),
    )


def softmax_loss(matrix: Tensor, visible: Tensor) -> Tensor:
    """Return the symmetric cross-entropy (InfoNCE) of each pair over visible cells: of its row, and of its column.

    A pair whose own cell is not visible has no loss; what is returned for it means nothing.

    Shape:
        matrix, visible: (..., P, P). Returns (..., P).

    Example:
        >>> softmax_loss(torch.zeros(8, 8), torch.ones(8, 8, dtype=torch.bool)).mean()  # ln 8
        tensor(2.0794)
    """
    own = torch.arange(matrix.shape[-1], device=matrix.device).expand(matrix.shape[:-1])
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
    """Cross-entropy of each vector against all others, with a uniform target over those of its own label.

    A vector that is alone with its label adds 0 and counts in the mean.

    Shape:
        vectors: (n, D). labels: (n,). known: (n, n) bool, vectors that are no negatives of each other.
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


OBJECTIVES: Mapping[str, Callable[[DualEncoder, float], Objective]] = {  # called with the encoder and the grid weight
    "triplet": lambda encoder, weight: Triplet(),
    "images": lambda encoder, weight: MultiPositive(),
    "views": lambda encoder, weight: TwoViews(encoder),
    "hard-negatives": lambda encoder, weight: HardNegatives(weight),
}
NEEDS = {"views": "kornia"}  # packages of the extra `repair-hf[study]`
MORE_IMAGES = {"views": VIEWS}  # images that a loss encodes for each anchor, beside those of the batch
