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

from repair_hf.baselines.choosing import as_cell, embed_files
from repair_hf.baselines.method import Baseline, Maker
from repair_hf.baselines.workshop import Workshop

CANDIDATES = 3
WITHIN = 100
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
    every = embed_files(workshop, [path for _, files in edited for path in files])
    vectors = np.split(every, np.cumsum([len(files) for _, files in edited])[:-1])  # (C, D) each
    rows = []
    for (row, files), candidates in zip(edited, vectors, strict=True):
        own = candidates @ texts[row]  # (C,)
        is_kept = is_variant(candidates, own, texts, generic)
        if not is_kept.any():
            workshop.drop(row, "filtered", "no candidate passes both filters")
            continue
        best = int(np.where(is_kept, own, -np.inf).argmax())
        rows.append(workshop.of_caption(row) | {"edit_image": as_cell(files[best])})
    return rows


def is_variant(vectors: np.ndarray, own: np.ndarray, texts: np.ndarray, generic: np.ndarray) -> np.ndarray:
    """Which candidates pass both filters.

    Shape:
        vectors: (C, D). own: (C,) cosine with their caption. texts: (M, D). generic: (G, D). Returns (C,).
    """
    is_right = own >= (vectors @ generic.T).max(1)
    return is_right & ((vectors @ texts.T > own[:, None]).sum(1) < WITHIN)


VARIANTS = Maker("alia", make, asks={"scene_change": 1}, edits=CANDIDATES)
METHODS = (Baseline("alia", {"variant": VARIANTS}),)
