"""COCO-Counterfactuals (Le et al., 2023): captions with another noun, and images edited to show them.

Data: an LLM puts another noun into each caption, 3 times, and the nearest is kept; the caption's image is edited to fit it, 3 times, and the
one nearest to the new caption is kept: 3 LLM calls, 3 image calls and 1 sample a caption.
Loss: `union`: a counterfactual pair is a pair like any other of the batch.

Our reading: RePair's paper names no loss. The original masks nouns for a language model and filters by CLIP; here the study's LLM and editor do
that, each choice by the retriever, so that all methods have the same means.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from repair_hf.baselines.choosing import as_cell, image_scores, nearest_captions
from repair_hf.baselines.losses import WithNegatives, union
from repair_hf.baselines.method import Baseline, Maker
from repair_hf.baselines.workshop import Workshop
from repair_hf.synthesis.prompts import fit_instruction

CANDIDATES = 3


async def make(workshop: Workshop) -> list[dict[str, Any]]:
    """One counterfactual pair for each caption."""

    async def ask(row: int) -> tuple[int, list[str]]:
        return row, await workshop.write("noun_swap", samples=CANDIDATES, caption=workshop.captions[row])

    found = await workshop.each(range(len(workshop.captions)), ask, "Swapping nouns")
    chosen = nearest_captions(workshop, [workshop.captions[row] for row, _ in found], [texts for _, texts in found])
    swapped = [(row, text) for (row, _), text in zip(found, chosen, strict=True) if text]

    async def edit(item: tuple[int, str]) -> tuple[int, str, list[Path]] | None:
        row, text = item
        files = await workshop.edit(int(workshop.pairs.caption_image[row]), fit_instruction(text))
        return (row, text, files) if files else None

    edited = await workshop.each(swapped, edit, "Editing images")
    scores = image_scores(workshop, [files for *_, files in edited], [text for _, text, _ in edited])
    return [
        workshop.of_caption(row) | {"text": text, "edit_image": as_cell(files[int(score.argmax())])}
        for (row, text, files), score in zip(edited, scores, strict=True)
    ]


COUNTERFACTUALS = Maker("coco-cf", make, edits=CANDIDATES)
METHODS = (Baseline("coco-cf", {"negative": COUNTERFACTUALS}, lambda width: WithNegatives(union)),)
