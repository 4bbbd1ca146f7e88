"""Plain fine-tuning, RePair, and RePair's variants, all trained by the package's own pipeline.

`vanilla` fine-tunes on the pairs alone, with symmetric InfoNCE over the batch. `repair` is the default of `repair-hf
train`: each edit stands beside the item that it was made from, in the global batch and in a grid.

| name | change to `repair` | our reading |
|---|---|---|
| `repair-i2t`, `repair-t2i` | failures of one direction | tuned themselves |
| `wo-failure` | no mining | same queries, random wrong answers; audit and edits as in `repair` |
| `wo-repair` | no edits | same records: the false positive is the hard negative, opposite the dataset's annotation |
| `wo-qc` | no audit | every mined failure is edited; `--always-instruct` also keeps those without anything to change |
| `wo-pqc` | no choice of the candidate | the first of three candidates |
| `repair-paper` | the paper's grids and grid loss | opposite an anchor's own failures always the best-scored edit |
| `full-matrix` | the paper's grids, in the global batch | their items are pairs like the anchors |
| `hard-neg-only` | the paper's grids without positives of the negatives | see `HardNegativesOnly` |
| `repair-batch`, `repair-grid` | the edits in the global batch alone, or in the grid loss alone | not in the paper |
| a swap's name | another LLM or editor | models from the study's option `swaps` |
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from repair_hf.study.methods.losses import anchor_loss, softmax_loss
from repair_hf.study.methods.method import Method, Records
from repair_hf.training.fills import PaperGrid
from repair_hf.training.step import Objective, Step

REPAIR = Records("repair")


class HardNegatives(PaperGrid):
    """Beside each anchor its own false positives, a caption and an image, with nothing opposite them."""

    def draw(self, epochs: np.ndarray, anchors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images, texts = super().draw(epochs, anchors)
        images[:, 1] = texts[:, 2] = -1
        return images, texts


class HardNegativesOnly(Objective):
    """InfoNCE over the anchors, and with a weight the mean of two cross-entropies, or of the only one that exists.

    The anchor's image chooses between its caption and the caption that it was confused with, and its caption between
    its image and the image that it was confused with. No edit is used.
    """

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weights = {"loss_grid": weight}

    def terms(self, step: Step) -> dict[str, Tensor]:
        beside = step.anchors == step.anchors[:, None]
        own = step.visible & beside
        sides = (own.sum(1) > 1).long() + (own.sum(0) > 1)  # (P,) cross-entropies of an anchor; the others are 0
        each = 2 * softmax_loss(step.matrix, own) / sides.clamp(min=1)
        has_grid = (step.slots == 0) & (beside.sum(1) > 1)
        found = each.where(has_grid, 0.0).sum() / has_grid.sum().clamp(min=1)
        return {"loss_global": anchor_loss(step), "loss_grid": found}


def variant(name: str, records: Records = REPAIR, *, fill: str = "edits", loss: str = "both", **more: Any) -> Method:
    """Return RePair with other choices; by default with its own records and hyperparameters."""
    return Method(name, {"records": records}, fill=fill, loss=loss, **{"tuned_as": "repair"} | more)


VANILLA = Method("vanilla")
VARIANTS = (
    variant("repair-i2t", Records("repair-i2t", directions=("i2t",)), tuned_as="repair-i2t"),
    variant("repair-t2i", Records("repair-t2i", directions=("t2i",)), tuned_as="repair-t2i"),
    variant("repair"),
    variant("wo-failure", Records("wo-failure", mine={"false_positives": "random"})),
    variant("wo-repair", fill="paper", edits=False),
    variant("wo-qc", Records("wo-qc", synthesize={"audited": False})),
    variant("wo-pqc", Records("wo-pqc", synthesize={"select": "first"})),
    variant("repair-paper", fill="paper", loss="grid", tuned_as="repair-paper"),
    variant("full-matrix", fill="paper", loss="batch"),
    variant(
        "hard-neg-only",
        fill="paper",
        loss="grid",
        edits=False,
        own_fill=HardNegatives,
        objective=lambda encoder, config: HardNegativesOnly(config.grid_weight or 0.0),
        tuned_as="repair-paper",
    ),
    variant("repair-grid", loss="grid", tuned_as="repair-paper"),
    variant("repair-batch", loss="batch"),
)
