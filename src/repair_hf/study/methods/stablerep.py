"""StableRep (Tian et al., 2023): images generated from captions as further positives.

Data: one image generated for each caption (1 image call and 1 sample a caption, no LLM).
Loss: InfoNCE on the real pairs, plus `multi_positive` over each anchor's real and generated image.

Our reading (RePair's paper gives no recipe): 145K I+ means one image a caption. An image and the images generated from
its caption are positives of each other. Weight 1 and temperature 0.1 are the original's. There is no projection head:
the loss acts on the vector that retrieval uses, and some hundred steps are too few to train a new head of 4,096 units.
"""

from __future__ import annotations

from torch import Tensor

from repair_hf.study.methods.context import MakerContext
from repair_hf.study.methods.losses import alike, anchor_loss, multi_positive
from repair_hf.study.methods.method import Maker, Method, Sample
from repair_hf.training.step import Objective, Step

TEMPERATURE = 0.1


async def make(context: MakerContext) -> list[Sample]:
    images = await context.drawn(dict(enumerate(context.captions)))
    return [(row, {"edit_image": image}) for row, image in images.items()]


class MultiPositive(Objective):
    """InfoNCE and the multi-positive loss, weighted by `weight`."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weights = {"loss_images": weight}

    def terms(self, step: Step) -> dict[str, Tensor]:
        found = multi_positive(step.images, step.anchors, TEMPERATURE, alike(step))
        return {"loss_global": anchor_loss(step), "loss_images": found}


DRAWN = Maker("stablerep", make, draws=True)
METHOD = Method("stablerep", {"drawn": DRAWN}, objective=lambda encoder, config: MultiPositive())
