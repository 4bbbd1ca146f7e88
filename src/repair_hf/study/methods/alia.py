"""ALiA (Dunlap et al., 2023, "Diversify your vision datasets with automatic diffusion-based augmentation").

Data: an LLM proposes a change of the image that keeps the caption true. The image is edited 3 times; of the candidates
that pass two filters, the one nearest to the caption is kept (1 LLM call and 3 image calls a caption, up to 5 variants
an image).
Loss: the default. Each epoch draws the image or the variant made for this caption, with equal probability.

Our reading:
- RePair's paper mentions a text-to-image model. Here the image itself is edited, as in the original.
- A variant is drawn with its own caption only: the image's other captions may name what was changed.
- The original summarises a dataset in ten scenes. Retrieval has captions instead of classes, so the LLM sees image and
  caption.
- Candidates that equal the image are dropped.
- Semantic filter: the variant is nearer to its caption than to any of `GENERIC`.
- Confidence filter, instead of the classifier's: the caption is among the variant's `CONFIDENT_RANK` nearest.
- The original's filter for variants that are too easy is left out. A good retriever would drop nearly all variants,
  and the paper counts 5 an image.
"""

from __future__ import annotations

import numpy as np

from repair_hf.study.methods.context import CANDIDATES, MakerContext
from repair_hf.study.methods.method import Maker, Method, Sample

CONFIDENT_RANK = 100
GENERIC = (
    "a photo",
    "an image",
    "a painting",
    "a photo of an object",
    "a photo of geometric shapes",
    "a photo of a person",
)


async def make(context: MakerContext) -> list[Sample]:
    texts = context.encoder.embed_texts(context.captions)  # (M, D)
    generic = context.encoder.embed_texts(list(GENERIC))  # (G, D)
    variants = await context.edited(
        await context.texts(shows_image=True),
        lambda rows: texts[rows],
        lambda vectors, own: is_variant(vectors, own, texts, generic),
    )
    return [(row, {"edit_image": image}) for row, image in variants.items()]


def is_variant(vectors: np.ndarray, own: np.ndarray, texts: np.ndarray, generic: np.ndarray) -> np.ndarray:
    """Return which candidates (n, D) pass both filters, by their cosine with their own caption (n,) and others."""
    is_right = own >= (vectors @ generic.T).max(1)
    return is_right & ((vectors @ texts.T > own[:, None]).sum(1) < CONFIDENT_RANK)


VARIANTS = Maker("alia", make, prompt="scene_change", answers=1, edits=CANDIDATES)
METHOD = Method("alia", {"variant": VARIANTS})
