"""TripletCLIP (Patel et al., 2024, "TripletCLIP: improving compositional reasoning of CLIP via synthetic vision-language negatives").

Data: an LLM writes one caption that is near and false, and an image is drawn of it: 1 LLM call, 1 image call and 1 sample a caption.
Loss: `triplet`, the sum of two NegCLIP terms: pairs against negative captions, negative pairs against captions.

Our reading: the sum, not the mean, as in the authors' code; one scale for both terms; the image is drawn from the negative caption alone and
is no edit of the caption's image.
"""

from __future__ import annotations

from typing import Any

from repair_hf.baselines.choosing import as_cell
from repair_hf.baselines.losses import WithNegatives, triplet
from repair_hf.baselines.method import Baseline, Maker
from repair_hf.baselines.workshop import Workshop


async def make(workshop: Workshop) -> list[dict[str, Any]]:
    """One false caption with its image for each caption."""

    async def ask(row: int) -> dict[str, Any] | None:
        texts = await workshop.write("hard_negative", caption=workshop.captions[row])
        path = await workshop.draw(texts[0]) if texts else None
        return None if path is None else workshop.of_caption(row) | {"text": texts[0], "edit_image": as_cell(path)}

    return await workshop.each(range(len(workshop.captions)), ask, "Making negative pairs")


NEGATIVE_PAIRS = Maker("tripletclip", make, draws=True)
METHODS = (Baseline("tripletclip", {"negative": NEGATIVE_PAIRS}, lambda width: WithNegatives(triplet)),)
