"""Hard negatives without positives of their own: the paper's ablation "Hard Neg Only".

Data: the paper's grids without the items opposite the false positives, so no edit is used.
Loss: InfoNCE over the anchors, and with a weight the mean of two cross-entropies: the anchor's image chooses between
its caption and the caption that it was confused with, and its caption between its image and the image that it was
confused with.

Our reading: where only one of the two false positives exists, its cross-entropy alone is taken.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from repair_hf.study.methods.losses import anchor_loss
from repair_hf.training.fills import PaperGrid
from repair_hf.training.step import Objective, Step, softmax_loss


class HardNegatives(PaperGrid):
    """Beside each anchor its own false positives, a caption and an image, with nothing opposite them."""

    def draw(self, epochs: np.ndarray, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images, texts = super().draw(epochs, anchors)
        images[:, 1] = texts[:, 2] = -1
        return images, texts


class HardNegativesOnly(Objective):
    """InfoNCE, and with a weight the loss above."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weights = {"loss_grid": weight}

    def terms(self, step: Step) -> dict[str, Tensor]:
        own = step.visible & (step.anchors == step.anchors[:, None])
        sides = (own.sum(1) > 1).long() + (own.sum(0) > 1)  # (P,) cross-entropies of an anchor; the others are 0
        each = 2 * softmax_loss(step.matrix, own) / sides.clamp(min=1)
        is_anchor = step.slots == 0
        found = each.where(is_anchor, 0.0).sum() / (is_anchor.sum() * self.share)
        return {"loss_global": anchor_loss(step), "loss_grid": found}
