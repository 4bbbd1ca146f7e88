"""COCO-Counterfactuals (Le et al., 2023): captions with another noun, and images edited to show them.

Data: an LLM puts another noun into each caption, 3 times, and the nearest is kept; the caption's image is edited to fit it, 3 times, and the
one nearest to the new caption is kept: 3 LLM calls, 3 image calls and 1 sample a caption.
Loss: `union`: a counterfactual pair is a pair like any other of the batch.

Our reading: RePair's paper names no loss. The original masks nouns for a language model and filters by CLIP; here the study's LLM and
editor do that, each choice by the retriever, so that all methods have the same means. A candidate that changed nothing is none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from repair_hf.llm.prompts import fit_instruction
from repair_hf.study.methods.candidates import CANDIDATES, as_cell, image_scores, nearest_captions
from repair_hf.study.methods.context import Workshop
from repair_hf.study.methods.losses import WithNegatives, union
from repair_hf.study.methods.method import Baseline, Maker


async def make(workshop: Workshop) -> list[dict[str, Any]]:
    """One counterfactual pair for each caption."""

    async def ask(row: int) -> tuple[int, list[str]]:
        return row, await workshop.write("noun_swap", samples=CANDIDATES, caption=workshop.captions[row])

    found = await workshop.each(range(len(workshop.captions)), ask, "Swapping nouns")
    swapped = dict(nearest_captions(workshop, found))

    async def edit(row: int) -> tuple[int, list[Path]]:
        return row, await workshop.edit(int(workshop.pairs.caption_image[row]), fit_instruction(swapped[row]))

    edited = await workshop.each(swapped, edit, "Editing images")
    scores = image_scores(workshop, [files for _, files in edited], [swapped[row] for row, _ in edited])
    return [
        workshop.of_caption(row) | {"text": swapped[row], "edit_image": as_cell(files[int(score.argmax())])}
        for (row, files), score in zip(edited, scores, strict=True)
    ]


COUNTERFACTUALS = Maker("coco-cf", make, asks={"noun_swap": CANDIDATES}, edits=CANDIDATES)
METHODS = (Baseline("coco-cf", {"negative": COUNTERFACTUALS}, WithNegatives.of(union)),)
