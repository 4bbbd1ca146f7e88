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

from repair_hf.study.methods.context import CANDIDATES, MakerContext
from repair_hf.study.methods.method import Maker, Method, Sample

MOST_NEW = 0.5  # share of words


async def make(context: MakerContext) -> list[Sample]:
    return [(row, {"text": text}) for row, text in (await context.texts(is_small)).items()]


def is_small(caption: str, text: str) -> bool:
    """Return whether at most half of the words are new."""
    before, after = caption.casefold().split(), text.casefold().split()
    blocks = difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_matching_blocks()
    longer = max(len(before), len(after))
    return longer - sum(block.size for block in blocks) <= max(MOST_NEW * longer, 1)


HARD_NEGATIVES = Maker("sugarcrepe", make, prompt="hard_negative", answers=CANDIDATES)
METHOD = Method("sugarcrepe", {"negative": HARD_NEGATIVES})
