"""La + SC: LaCLIP's rewrites and SugarCrepe-style hard negatives together.

Data: both, made as for these methods; nothing of its own. 290K samples in the paper.
Loss: `negative_captions`, its captions drawn as LaCLIP draws them.

Our reading: the paper tunes the share of rewrites without telling it; here a caption and its rewrite are equally likely, as for LaCLIP.
"""

from __future__ import annotations

from repair_hf.study.methods.laclip import REWRITES
from repair_hf.study.methods.losses import WithNegatives, negative_captions
from repair_hf.study.methods.method import Baseline
from repair_hf.study.methods.sugarcrepe import HARD_NEGATIVES

PARTS = {"rewrite": REWRITES, "negative": HARD_NEGATIVES}
METHODS = (Baseline("la+sc", PARTS, WithNegatives.of(negative_captions)),)
