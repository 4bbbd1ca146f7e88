"""SugarCrepe-style hard negatives (after Hsieh et al., 2023, "SugarCrepe"; the benchmark itself trains nothing).

Data: an LLM writes 3 false captions for each caption, and the one nearest to it in the retriever's eyes is kept: 3 calls and 1 sample a caption.
Loss: `negative_captions`.

Our reading: the LLM chooses among replacing, swapping and adding, told to change as little as it can and not to negate. It sees the
caption alone. A candidate must differ from the caption and change at most half of its words (of ten words, five); the benchmark's
adversarial refinement, which needs two further models, is not part of it. The paper counts one to three rounds of these calls; here there
is one.
"""

from __future__ import annotations

import difflib
from typing import Any

from repair_hf.study.methods.candidates import CANDIDATES, nearest_captions
from repair_hf.study.methods.context import NoSample, Workshop
from repair_hf.study.methods.losses import WithNegatives, negative_captions
from repair_hf.study.methods.method import Baseline, Maker

MOST_NEW = 0.5  # share of words


async def make(workshop: Workshop) -> list[dict[str, Any]]:
    """One false caption for each caption."""

    async def ask(row: int) -> tuple[int, list[str]]:
        caption = workshop.captions[row]
        texts = await workshop.write("hard_negative", samples=CANDIDATES, caption=caption)
        small = [text for text in texts if is_small(caption, text)]
        if not small:
            raise NoSample("filtered", f"more than half of the words are new: {texts[0]!r}")
        return row, small

    found = await workshop.each(range(len(workshop.captions)), ask, "Writing hard negatives")
    return [workshop.of_caption(row) | {"text": text} for row, text in nearest_captions(workshop, found)]


def is_small(caption: str, text: str) -> bool:
    """Whether at most half of the words are new."""
    before, after = caption.casefold().split(), text.casefold().split()
    same = sum(
        block.size for block in difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_matching_blocks()
    )
    return max(len(before), len(after)) - same <= max(MOST_NEW * max(len(before), len(after)), 1)


HARD_NEGATIVES = Maker("sugarcrepe", make, asks={"hard_negative": CANDIDATES})
METHODS = (Baseline("sugarcrepe", {"negative": HARD_NEGATIVES}, WithNegatives.of(negative_captions)),)
