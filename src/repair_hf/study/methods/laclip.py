"""LaCLIP (Fan et al., 2023, "Improving CLIP training with language rewrites"), and the two mixtures with it.

LaCLIP:
- Data: an LLM rewrites each caption once (1 LLM call and 1 sample a caption).
- Loss: the default. Each epoch draws the caption or its rewrite with equal probability.
- Our reading: the prompt is an instruction instead of the original's three examples. Rewrites of fewer than two words
  are dropped, as in the original, and so are rewrites that equal the caption.

La + SC:
- Data: LaCLIP's rewrites and SugarCrepe-style hard negatives (290K samples in the paper).
- Loss: as SugarCrepe; captions are drawn as in LaCLIP.
- Our reading: the paper does not report its share of rewrites. Here a caption and its rewrite are equally likely.

CF + AL + La:
- Data: COCO-CF's pairs, ALiA's variants and LaCLIP's rewrites, unfiltered (435K in the paper).
- Loss: as COCO-CF; images and captions are drawn as in ALiA and LaCLIP, with counterfactual pairs beside them.
- Our reading: the paper merges the sources into one set of pairs. Here each anchor draws from all three, so that every
  sample is seen as often and an epoch keeps its length.
"""

from __future__ import annotations

from repair_hf.study.methods.alia import VARIANTS
from repair_hf.study.methods.coco_cf import COUNTERFACTUALS
from repair_hf.study.methods.context import MakerContext
from repair_hf.study.methods.method import Maker, Method, Sample
from repair_hf.study.methods.sugarcrepe import HARD_NEGATIVES


async def make(context: MakerContext) -> list[Sample]:
    rewrites = await context.texts(lambda caption, text: len(text.split()) > 1)
    return [(row, {"text": text}) for row, text in rewrites.items()]


REWRITES = Maker("laclip", make, prompt="rewrite", answers=1)
LACLIP = Method("laclip", {"rewrite": REWRITES})
LA_SC = Method("la+sc", {"rewrite": REWRITES, "negative": HARD_NEGATIVES})
CF_AL_LA = Method("cf+al+la", {"negative": COUNTERFACTUALS, "variant": VARIANTS, "rewrite": REWRITES})
