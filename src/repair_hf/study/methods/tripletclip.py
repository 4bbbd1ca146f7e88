"""TripletCLIP (Patel et al., 2024, "TripletCLIP: improving compositional reasoning of CLIP via synthetic vision-language negatives").

Data: an LLM writes one caption that is near and false, and an image is drawn of it: 1 LLM call, 1 image call and 1 sample a caption.
Loss: `triplet`, the sum of two NegCLIP terms: pairs against negative captions, negative pairs against captions.

Our reading: the sum, not the mean, as in the authors' code; one scale for both terms; the image is drawn from the negative caption alone
and is no edit of the caption's image. There is no filter, as there; only an answer that says what the caption says is no negative.
"""

from __future__ import annotations

from typing import Any

from repair_hf.pairs.dataset import bare_caption
from repair_hf.study.methods.candidates import as_cell
from repair_hf.study.methods.context import NoSample, Workshop
from repair_hf.study.methods.losses import WithNegatives, triplet
from repair_hf.study.methods.method import Baseline, Maker


async def make(workshop: Workshop) -> list[dict[str, Any]]:
    """One false caption with its image for each caption."""

    async def ask(row: int) -> dict[str, Any]:
        [text] = await workshop.write("hard_negative", caption=workshop.captions[row])
        if bare_caption(text) == bare_caption(workshop.captions[row]):
            raise NoSample("no_op", "the negative says what the caption says")
        return workshop.of_caption(row) | {"text": text, "edit_image": as_cell(await workshop.draw(text))}

    return await workshop.each(range(len(workshop.captions)), ask, "Making negative pairs")


NEGATIVE_PAIRS = Maker("tripletclip", make, asks={"hard_negative": 1}, draws=True)
METHODS = (Baseline("tripletclip", {"negative": NEGATIVE_PAIRS}, WithNegatives.of(triplet)),)
