"""TripletCLIP (Patel et al., 2024): a false caption and an image of it as a negative pair.

Data: an LLM writes one similar but false caption, and an image of it is generated (1 LLM call, 1 image call and 1
sample a caption).
Loss: `Triplet`, the sum of two NegCLIP terms: pairs against negative captions, negative pairs against captions.

Our reading: the sum, not the mean, as in the authors' code; one scale for both terms. The image is generated from the
negative caption alone and is no edit of the caption's image. There is no filter, as in the original, but negatives
that equal the caption are dropped.
"""

from __future__ import annotations

from torch import Tensor

from repair_hf.study.methods.context import MakerContext
from repair_hf.study.methods.losses import mean_over_pairs, softmax_loss
from repair_hf.study.methods.method import Maker, Method, Sample
from repair_hf.training.step import Objective, Step


async def make(context: MakerContext) -> list[Sample]:
    texts = await context.texts()
    images = await context.drawn(texts)
    return [(row, {"text": texts[row], "edit_image": image}) for row, image in images.items()]


class Triplet(Objective):
    """InfoNCE of the anchors' images and of the negatives', each against all captions.

    Captions choose among the images of their own kind.
    """

    def terms(self, step: Step) -> dict[str, Tensor]:
        is_anchor = step.slots == 0
        halves = [step.visible & rows[:, None] for rows in (is_anchor, ~is_anchor)]
        losses = [mean_over_pairs(softmax_loss(step.matrix, cells), cells) for cells in halves if cells.any()]
        return {"loss_global": sum(losses[1:], losses[0])}


NEGATIVE_PAIRS = Maker("tripletclip", make, prompt="hard_negative", answers=1, draws=True)
METHOD = Method("tripletclip", {"negative": NEGATIVE_PAIRS}, objective=lambda encoder, config: Triplet())
