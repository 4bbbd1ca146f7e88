"""Captions and scenes varied on purpose, judged by the world's own truth."""

from __future__ import annotations

import random

from repair_hf.toyworld import captions, instructions, scenes, variations
from repair_hf.toyworld.domains import DOMAINS
from repair_hf.toyworld.scenes import holds


def test_variations_are_what_they_claim():
    rng, changed = random.Random(2), 0
    for scene in [scenes.sample(rng) for _ in range(300)]:
        caption = captions.write(scene, rng)
        reworded = variations.reword(caption, rng)
        assert reworded != caption and captions.parse(reworded) == captions.parse(caption)
        assert not holds(captions.parse(variations.falsify(caption, rng)), scene)
        swapped = variations.swap_noun(caption, rng)
        assert captions.parse(swapped) != captions.parse(caption)
        assert holds(captions.parse(caption), variations.imagine(caption, rng, DOMAINS["plain"]))
        other = variations.change_scene(caption, scene, rng)
        assert holds(captions.parse(caption), other)
        assert instructions.apply_image_instruction(scene, instructions.scene_instruction(scene, other)) == other
        changed += other != scene
    assert changed > 150
