"""LaCLIP (Fan et al., 2023, "Improving CLIP training with language rewrites"): captions in other words.

Data: an LLM rewrites each caption once: 1 call and 1 sample a caption.
Loss: InfoNCE; each time a caption is met, it or its rewrite is drawn, both equally likely.

Our reading: an instruction in place of the original's three examples in front of the caption. A rewrite of fewer than two words is dropped,
as there; so is one that says nothing new, and the caption then stands for itself.
"""

from __future__ import annotations

from typing import Any

from repair_hf.pairs.dataset import bare_caption
from repair_hf.study.methods.context import NoSample, Workshop
from repair_hf.study.methods.method import Baseline, Maker


async def make(workshop: Workshop) -> list[dict[str, Any]]:
    """One rewrite for each caption."""

    async def ask(row: int) -> dict[str, Any]:
        caption = workshop.captions[row]
        [text] = await workshop.write("rewrite", caption=caption)
        if len(text.split()) < 2:
            raise NoSample("filtered", f"a rewrite of one word: {text!r}")
        if bare_caption(text) == bare_caption(caption):
            raise NoSample("no_op", "the rewrite says what the caption says, in its words")
        return workshop.of_caption(row) | {"text": text}

    return await workshop.each(range(len(workshop.captions)), ask, "Rewriting captions")


REWRITES = Maker("laclip", make, asks={"rewrite": 1})
METHODS = (Baseline("laclip", {"rewrite": REWRITES}),)
