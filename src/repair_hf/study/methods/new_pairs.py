"""Control: as many new true pairs as RePair makes edits. Is it the repair, or only more pictures?

Data: the toy world draws random scenes with a true caption each, 3.6 for each training image, the paper's ratio of
edits (2.0 images and 1.6 captions). They cost no calls.
Loss: `new-pairs`: `union`, a new pair is one more pair of the batch. `new-pairs-grid`: a new pair is slot 2 of the
anchor's grid, as in `GridLoss`.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.study.methods.context import MakerContext
from repair_hf.study.methods.losses import WithNegatives, is_present, union
from repair_hf.study.methods.method import Baseline, Maker
from repair_hf.toyworld import captions, renderer
from repair_hf.toyworld.domains import DOMAINS
from repair_hf.training.losses import GridLoss
from repair_hf.training.objectives import Objective, Term, Vectors, global_loss, pick

PER_IMAGE = 3.6
DOMAIN = DOMAINS["target"]


async def make(context: MakerContext) -> list[dict[str, Any]]:
    rng = random.Random(context.seed)
    count = min(round(PER_IMAGE * len(context.pairs.images)), len(context.captions))

    def draw(row: int) -> dict[str, Any]:
        scene = DOMAIN.scene(rng)
        picture = renderer.to_png(renderer.render(scene))
        text = captions.write(scene, rng, DOMAIN.style)
        return context.of_caption(row) | {"text": text, "edit_image": {"bytes": picture, "path": None}}

    chosen = set(rng.sample(range(len(context.captions)), count))
    for row in set(range(len(context.captions))) - chosen:
        context.drop(row, "filtered", f"{PER_IMAGE} new pairs for each image are enough")
    return [draw(row) for row in sorted(chosen)]


class PairInGrid(Objective):
    """InfoNCE over the anchors, and the grid loss over each anchor and its new pair (2x2)."""

    def forward(self, vectors: Vectors, inputs: dict[str, Any]) -> dict[str, Term]:
        images = torch.stack([pick(vectors.images, inputs[f"{one}_images"]) for one in ("anchor", "negative")], 1)
        texts = torch.stack([pick(vectors.texts, inputs[f"{one}_texts"]) for one in ("anchor", "negative")], 1)
        here = is_present(images[:, 1])
        present = torch.stack([torch.ones_like(here), here, torch.zeros_like(here)], 1)  # (B, 3)
        images, texts = (torch.cat([some, torch.zeros_like(some[:, :1])], 1) for some in (images, texts))  # (B, 3, D)
        found = GridLoss()(images, texts, vectors.scale, present, None)
        return {"loss_global": global_loss(vectors, inputs), "loss_grid": Term(found["loss"], 1.0, found["grids"])}


def pair_in_grid(encoder: DualEncoder) -> Objective:
    return PairInGrid()


PAIRS = Maker("new-pairs", make, is_toy=True)
METHOD = Baseline("new-pairs", {"negative": PAIRS}, WithNegatives.of(union))
IN_GRID = Baseline("new-pairs-grid", {"negative": PAIRS}, pair_in_grid)
