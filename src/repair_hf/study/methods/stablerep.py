"""StableRep (Tian et al., 2023, "StableRep: synthetic images from text-to-image models make strong visual representation learners").

Data: one image drawn for each caption: 1 image call and 1 sample a caption, no LLM.
Loss: InfoNCE on the real pairs, and `multi_positive` over the real image and the drawn one of each anchor.

Our reading, for RePair's paper gives no recipe: 145K I+ is one image a caption; an image and what was drawn of its caption are each other's
positives; weight 1 and temperature 0.1 as in the original; no projection head, for what is to come nearer is the very vector that
retrieval uses, and a head of 4,096 random units would have some hundred steps to learn something.
"""

from __future__ import annotations

from typing import Any

import torch

from repair_hf.study.methods.candidates import as_cell
from repair_hf.study.methods.context import Workshop
from repair_hf.study.methods.losses import multi_positive
from repair_hf.study.methods.method import Baseline, Maker
from repair_hf.training.losses import ContrastiveLoss
from repair_hf.training.objectives import Objective, Term, Vectors, anchor_pairs, gather, pick

TEMPERATURE = 0.1


async def make(workshop: Workshop) -> list[dict[str, Any]]:
    """One image for each caption."""

    async def draw(row: int) -> dict[str, Any]:
        return workshop.of_caption(row) | {"edit_image": as_cell(await workshop.draw(workshop.captions[row]))}

    return await workshop.each(range(len(workshop.captions)), draw, "Drawing captions")


class MultiPositive(Objective):
    """InfoNCE and the multi-positive loss."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight, self.contrastive_loss = weight, ContrastiveLoss()

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        images, texts = anchor_pairs(vectors, inputs)
        drawn = gather(pick(vectors.images, inputs["drawn_images"]))  # (B, D)
        here = (drawn != 0).any(1)
        labels = torch.arange(len(images), device=images.device)
        found = multi_positive(torch.cat([images, drawn[here]]), torch.cat([labels, labels[here]]), TEMPERATURE)
        return {
            "loss_global": Term(self.contrastive_loss(images, texts, vectors.scale)["loss"]),
            "loss_images": Term(found, self.weight),
        }


DRAWN = Maker("stablerep", make, draws=True)
METHODS = (Baseline("stablerep", {"drawn": DRAWN}, lambda encoder: MultiPositive()),)
