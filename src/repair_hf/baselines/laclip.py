"""LaCLIP (Fan et al., 2023, "Improving CLIP training with language rewrites"): captions in other words.

Data: an LLM rewrites each caption once: 1 call and 1 sample a caption.
Loss: InfoNCE; each time a caption is met, it or its rewrite is drawn, both equally likely.

Our reading: an instruction in place of the original's three examples in front of the caption. A rewrite of fewer than two words is dropped,
as there; so is one that says nothing new, and the caption then stands for itself.
"""

from __future__ import annotations

from typing import Any

from repair_hf.baselines.method import Baseline, Maker
from repair_hf.baselines.workshop import Workshop
from repair_hf.pairs import bare_caption


async def make(workshop: Workshop) -> list[dict[str, Any]]:
    """One rewrite for each caption."""

    async def ask(row: int) -> dict[str, Any] | None:
        caption = workshop.captions[row]
        texts = await workshop.write("rewrite", caption=caption)
        is_of_use = texts and len(texts[0].split()) > 1 and bare_caption(texts[0]) != bare_caption(caption)
        return workshop.of_caption(row) | {"text": texts[0]} if is_of_use else None

    return await workshop.each(range(len(workshop.captions)), ask, "Rewriting captions")


REWRITES = Maker("laclip", make)
METHODS = (Baseline("laclip", {"rewrite": REWRITES}),)
