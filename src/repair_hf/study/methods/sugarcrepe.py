"""SugarCrepe-style hard negatives (after Hsieh et al., 2023, whose benchmark trains nothing).

Data: an LLM writes 3 false captions for each caption, and the one nearest to the caption is kept (3 LLM calls and 1
sample a caption).
Loss: the default; a false caption is one more caption of the batch.

Our reading: the LLM replaces, swaps or adds words, with as few changes as it can and without negation. It sees the
caption alone. A candidate must differ from the caption and change at most half of its words. The benchmark's
adversarial refinement needs two further models and is left out. The paper counts one to three rounds of these calls;
here there is one.
"""

from __future__ import annotations

import difflib

from repair_hf.study.methods.context import CANDIDATES, Maker, MakerContext, NoSample, Sample, nearest_captions
from repair_hf.study.methods.method import Method

MOST_NEW = 0.5  # share of words


async def make(context: MakerContext) -> list[Sample]:

    async def ask(row: int) -> list[str]:
        caption = context.captions[row]
        texts = await context.write("hard_negative", samples=CANDIDATES, caption=caption)
        small = [text for text in texts if is_small(caption, text)]
        if not small:
            raise NoSample("filtered", f"more than half of the words are new: {texts[0]!r}")
        return small

    found = nearest_captions(context, await context.each(ask, "Writing hard negatives"))
    return [(row, {"text": text}) for row, text in found.items()]


def is_small(caption: str, text: str) -> bool:
    """Return whether at most half of the words are new."""
    before, after = caption.casefold().split(), text.casefold().split()
    blocks = difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_matching_blocks()
    longer = max(len(before), len(after))
    return longer - sum(block.size for block in blocks) <= max(MOST_NEW * longer, 1)


HARD_NEGATIVES = Maker("sugarcrepe", make, asks={"hard_negative": CANDIDATES})
METHOD = Method("sugarcrepe", {"negative": HARD_NEGATIVES})
