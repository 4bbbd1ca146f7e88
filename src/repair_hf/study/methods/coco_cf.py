"""COCO-Counterfactuals (Le et al., 2023): captions with another noun, and images edited to show them.

Data: an LLM replaces a noun of each caption, 3 times, and the candidate nearest to the caption is kept. The image is
edited to fit the new caption, 3 times, and the candidate nearest to the new caption is kept (3 LLM calls, 3 image
calls and 1 sample a caption).
Loss: the default; a counterfactual pair is one more pair of the batch.

Our reading: RePair's paper names no loss. The original masks nouns for a language model and filters by CLIP. Here the
study's LLM and editor make the candidates and the retriever chooses, so that all methods use the same models.
Unchanged candidates are dropped.
"""

from __future__ import annotations

from repair_hf.llm.prompts import fit_instruction
from repair_hf.study.methods.context import CANDIDATES, MakerContext
from repair_hf.study.methods.method import Maker, Method, Sample


async def make(context: MakerContext) -> list[Sample]:
    swapped = await context.texts()
    images = await context.edited(
        {row: fit_instruction(text) for row, text in swapped.items()},
        lambda rows: context.encoder.embed_texts([swapped[row] for row in rows]),
    )
    return [(row, {"text": swapped[row], "edit_image": image}) for row, image in images.items()]


COUNTERFACTUALS = Maker("coco-cf", make, prompt="noun_swap", answers=CANDIDATES, edits=CANDIDATES)
METHOD = Method("coco-cf", {"negative": COUNTERFACTUALS})
