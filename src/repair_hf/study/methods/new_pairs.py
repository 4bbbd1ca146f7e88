"""Control: as many new true pairs as RePair makes edits. Is it the repair, or only more pictures?

Data: the toy world draws random scenes with a true caption each, 3.6 for each training image, the paper's ratio of
edits (2.0 images and 1.6 captions). They cost no calls.
Loss: the default; a new pair is one more pair of the batch.
"""

from __future__ import annotations

import random
from typing import Any

from repair_hf.study.methods.context import SEED, MakerContext
from repair_hf.study.methods.method import Maker, Method, Sample
from repair_hf.toyworld import captions, renderer
from repair_hf.toyworld.domains import DOMAINS

PER_IMAGE = 3.6


async def make(context: MakerContext) -> list[Sample]:
    rng, first = random.Random(SEED), renderer.read_scene(context.pairs.images[0]["image"])
    domain = DOMAINS[first.look]
    count = min(round(PER_IMAGE * len(context.pairs.images)), len(context.captions))

    def draw(row: int) -> dict[str, Any]:
        scene = domain.scene(rng)
        picture = renderer.to_png(renderer.render(scene))
        text = captions.write(scene, rng, domain.style)
        return {"text": text, "edit_image": {"bytes": picture, "path": None}}

    chosen = set(rng.sample(range(len(context.captions)), count))
    for row in set(range(len(context.captions))) - chosen:
        context.drop(row, "filtered", f"{PER_IMAGE} new pairs for each image are enough")
    return [(row, draw(row)) for row in sorted(chosen)]


PAIRS = Maker("new-pairs", make, is_toy=True)
METHOD = Method("new-pairs", {"negative": PAIRS})
