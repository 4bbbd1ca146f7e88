"""TripletCLIP (Patel et al., 2024): a false caption and an image of it as a negative pair.

Data: an LLM writes one similar but false caption, and an image of it is generated (1 LLM call, 1 image call and 1
sample a caption).
Loss: `triplet`, the sum of two NegCLIP terms: pairs against negative captions, negative pairs against captions.

Our reading: the sum, not the mean, as in the authors' code; one scale for both terms. The image is generated from the
negative caption alone and is no edit of the caption's image. There is no filter, as in the original, but negatives
that equal the caption are dropped.
"""

from __future__ import annotations

from typing import Any

from repair_hf.pairs.wording import bare_caption
from repair_hf.study.methods.candidates import as_cell
from repair_hf.study.methods.context import MakerContext, NoSample
from repair_hf.study.methods.losses import WithNegatives, triplet
from repair_hf.study.methods.method import Baseline, Maker


async def make(context: MakerContext) -> list[dict[str, Any]]:

    async def ask(row: int) -> dict[str, Any]:
        [text] = await context.write("hard_negative", caption=context.captions[row])
        if bare_caption(text) == bare_caption(context.captions[row]):
            raise NoSample("no_op", "the negative equals the caption")
        return context.of_caption(row) | {"text": text, "edit_image": as_cell(await context.draw(text))}

    return await context.each(range(len(context.captions)), ask, "Making negative pairs")


NEGATIVE_PAIRS = Maker("tripletclip", make, asks={"hard_negative": 1}, draws=True)
METHOD = Baseline("tripletclip", {"negative": NEGATIVE_PAIRS}, WithNegatives.of(triplet))
