"""StableRep (Tian et al., 2023): images generated from captions as further positives.

Data: one image generated for each caption (1 image call and 1 sample a caption, no LLM).
Loss: InfoNCE on the real pairs, plus `multi_positive` over each anchor's real and generated image.

Our reading (RePair's paper gives no recipe): 145K I+ means one image a caption. An image and the images generated from
its caption are positives of each other. Weight 1 and temperature 0.1 are the original's. There is no projection head:
the loss acts on the vector that retrieval uses, and some hundred steps are too few to train a new head of 4,096 units.
"""

from __future__ import annotations

from typing import Any

import torch

from repair_hf.study.methods.candidates import as_cell
from repair_hf.study.methods.context import MakerContext
from repair_hf.study.methods.losses import groups_of, multi_positive
from repair_hf.study.methods.method import Baseline, Maker
from repair_hf.training.objectives import Objective, Term, Vectors, gather, global_loss, pick

TEMPERATURE = 0.1


async def make(context: MakerContext) -> list[dict[str, Any]]:

    async def draw(row: int) -> dict[str, Any]:
        return context.of_caption(row) | {"edit_image": as_cell(await context.draw(context.captions[row]))}

    return await context.each(range(len(context.captions)), draw, "Drawing captions")


class MultiPositive(Objective):
    """InfoNCE and the multi-positive loss, weighted by `weight`."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        images = gather(vectors.images[inputs["anchor_images"]])  # (B, D)
        drawn = gather(pick(vectors.images, inputs["drawn_images"]))  # (B, D)
        here = (drawn != 0).any(1)
        labels = torch.arange(len(images), device=images.device)
        owners = torch.cat([labels, labels[here]])
        groups = None if (known := groups_of(inputs)) is None else known[owners]
        found = multi_positive(torch.cat([images, drawn[here]]), owners, TEMPERATURE, groups)
        return {"loss_global": global_loss(vectors, inputs), "loss_images": Term(found, self.weight)}


DRAWN = Maker("stablerep", make, draws=True)
METHOD = Baseline("stablerep", {"drawn": DRAWN}, lambda encoder: MultiPositive())
