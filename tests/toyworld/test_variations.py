"""Captions and scenes varied on purpose, judged by the world's own truth."""

from __future__ import annotations

import random

import pytest

from repair_hf.llm.prompts import chat, draw_instruction, fit_instruction
from repair_hf.toyworld import captions, instructions, oracle, renderer, scenes, variations
from repair_hf.toyworld.editor import WorldEditor
from repair_hf.toyworld.scenes import holds


@pytest.fixture(scope="module")
def described() -> list[tuple[scenes.Scene, str]]:
    rng = random.Random(1)
    drawn = [scenes.sample(rng) for _ in range(300)]
    return [(scene, captions.write(scene, rng)) for scene in drawn]


def test_variations_are_what_they_claim(described):
    rng, changed = random.Random(2), 0
    for scene, caption in described:
        reworded = variations.reword(caption, rng)
        assert reworded != caption and captions.parse(reworded) == captions.parse(caption)
        assert not holds(captions.parse(variations.falsify(caption, rng)), scene)
        swapped = variations.swap_noun(caption, rng)
        assert captions.parse(swapped) != captions.parse(caption)
        assert holds(captions.parse(caption), variations.imagine(caption, rng))
        other = variations.change_scene(caption, scene, rng)
        assert holds(captions.parse(caption), other)
        assert instructions.apply_image_instruction(scene, instructions.scene_instruction(scene, other)) == other
        changed += other != scene
    assert changed > len(described) / 2


@pytest.mark.parametrize("job", ["rewrite", "hard_negative", "noun_swap"])
def test_the_oracle_does_the_jobs_by_their_prompts(described, job):
    for scene, caption in described[:30]:
        said = oracle.answer(chat(job, caption=caption), seed=1)
        assert said == oracle.answer(chat(job, caption=caption), seed=1) != caption
        if job != "noun_swap":
            assert holds(captions.parse(said), scene) == (job == "rewrite")


def test_the_editor_draws_and_fits(described):
    blank = renderer.render(described[0][0])
    for scene, caption in described[:10]:
        drawn, fitted = WorldEditor().edit(
            [blank, renderer.render(scene)], [draw_instruction(caption), fit_instruction(described[0][1])], [[1], [1]]
        )
        assert holds(captions.parse(caption), renderer.read_scene(drawn[0]))
        assert holds(captions.parse(described[0][1]), renderer.read_scene(fitted[0]))
