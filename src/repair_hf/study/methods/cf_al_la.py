"""CF + AL + La: COCO-CF's counterfactual pairs, ALiA's variants and LaCLIP's rewrites together.

Data: all three, made as for these methods; nothing of its own, and no further filter. 435K samples in the paper.
Loss: `union`: images and captions drawn as ALiA and LaCLIP draw them, counterfactual pairs beside them.

Our reading: the paper merges the sources into one set of pairs; here each anchor draws from all three, which shows every sample as often
without making the epoch four times as long.
"""

from __future__ import annotations

from repair_hf.study.methods.alia import VARIANTS
from repair_hf.study.methods.coco_cf import COUNTERFACTUALS
from repair_hf.study.methods.laclip import REWRITES
from repair_hf.study.methods.losses import WithNegatives, union
from repair_hf.study.methods.method import Baseline

PARTS = {"negative": COUNTERFACTUALS, "variant": VARIANTS, "rewrite": REWRITES}
METHODS = (Baseline("cf+al+la", PARTS, WithNegatives.of(union)),)
