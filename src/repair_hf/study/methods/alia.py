"""ALiA (Dunlap et al., 2023, "Diversify your vision datasets with automatic diffusion-based augmentation").

Data: for each caption of an image an LLM says how the image could differ and the caption stay true; the image is edited so, 3 times; what
passes the filters goes on, and the candidate nearest to the caption is kept: 1 LLM call and 3 image calls a caption, up to 5 variants an image.
Loss: InfoNCE; each time a caption is met, its image or the variant that was made for it is drawn, both equally likely.

Our reading: RePair's paper speaks of a text-to-image model; here the image itself is edited, as in the original. A variant is held to its
own caption, and the image's others may name what it changed; so it is drawn with that caption alone. The original sums up a data set in
ten scenes; retrieval has no classes that a scene must leave alone, but captions, so the LLM is shown image and caption. A candidate that
changed nothing is none. Semantic filter: the variant is nearer to its caption than to any of `GENERIC`. Confidence filter, in place of
the classifier's: its caption is among the variant's `WITHIN` best, else it is taken for mislabelled. The filter for what is too easy is
left out: with it a good retriever would keep next to nothing, and the paper counts 5 variants an image.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from repair_hf.study.methods.candidates import CANDIDATES, as_cell, embed_files
from repair_hf.study.methods.context import Workshop
from repair_hf.study.methods.method import Baseline, Maker

WITHIN = 100
AT_ONCE = 256  # candidates that are compared with all captions
GENERIC = (
    "a photo",
    "an image",
    "a painting",
    "a photo of an object",
    "a photo of geometric shapes",
    "a photo of a person",
)


async def make(workshop: Workshop) -> list[dict[str, Any]]:
    """A variant of its image for each caption."""

    async def ask(row: int) -> tuple[int, list[Path]]:
        image = int(workshop.pairs.caption_image[row])
        url = workshop.sources.url(image)
        [told] = await workshop.write("scene_change", source_image=url, caption=workshop.captions[row])
        return row, await workshop.edit(image, told)

    edited = await workshop.each(range(len(workshop.captions)), ask, "Varying images")
    if not edited:
        return []
    texts = workshop.encoder.embed_texts(workshop.captions)  # (M, D)
    generic = workshop.encoder.embed_texts(list(GENERIC))  # (G, D)
    vectors = embed_files(workshop, [path for _, files in edited for path in files])  # (n, D)
    counts = [len(files) for _, files in edited]
    own = (vectors * texts[np.repeat([row for row, _ in edited], counts)]).sum(1)  # (n,)
    blocks = [slice(start, start + AT_ONCE) for start in range(0, len(vectors), AT_ONCE)]
    is_kept = np.concatenate([is_variant(vectors[block], own[block], texts, generic) for block in blocks])
    scores = np.split(np.where(is_kept, own, -np.inf), np.cumsum(counts)[:-1])  # (C,) each
    rows = []
    for (row, files), score in zip(edited, scores, strict=True):
        if score.max() == -np.inf:
            workshop.drop(row, "filtered", "no candidate passes both filters")
        else:
            rows.append(workshop.of_caption(row) | {"edit_image": as_cell(files[int(score.argmax())])})
    return rows


def is_variant(vectors: np.ndarray, own: np.ndarray, texts: np.ndarray, generic: np.ndarray) -> np.ndarray:
    """Which candidates pass both filters.

    Shape:
        vectors: (n, D). own: (n,) cosine with their caption. texts: (M, D). generic: (G, D). Returns (n,).
    """
    is_right = own >= (vectors @ generic.T).max(1)
    return is_right & ((vectors @ texts.T > own[:, None]).sum(1) < WITHIN)


VARIANTS = Maker("alia", make, asks={"scene_change": 1}, edits=CANDIDATES)
METHODS = (Baseline("alia", {"variant": VARIANTS}),)
