"""Captions: what the grammar writes it reads, and instructions do what they say."""

import random
import re

import pytest

from repair_hf.toyworld import captions, scenes


@pytest.fixture
def rng():
    return random.Random(0)


def test_every_written_caption_is_true_of_its_scene(rng):
    for _ in range(3000):
        scene = scenes.sample(rng)
        assert scenes.holds(captions.parse(captions.write(scene, rng)), scene)


def test_captions_vary_and_leave_facts_out(rng):
    scene = scenes.sample(rng)
    texts = [captions.write(scene, rng) for _ in range(200)]
    assert len(set(texts)) > 150
    mentions = [captions.parse(text) for text in texts]
    assert {facts.background is None for facts in mentions} == {True, False}
    assert {facts.second is None for facts in mentions} == {True, False}


def test_text_outside_the_grammar_is_refused():
    with pytest.raises(ValueError, match="not a caption of the toy world"):
        captions.parse("A woman in a coat walks through an airport.")


def test_caption_instruction_makes_the_caption_true(rng):
    for _ in range(3000):
        scene, caption = scenes.sample(rng), captions.write(scenes.sample(rng), rng)
        if scenes.holds(captions.parse(caption), scene):
            continue
        instruction = captions.caption_instruction(caption, scene)
        kinds = set(re.findall(r"Object|Action|Attribute|Count|Relation|Hallucination", instruction.split("]")[0]))
        assert kinds == {gap.kind for gap in scenes.differences(captions.parse(caption), scene)}
        edited = captions.apply_instruction(caption, instruction, rng)
        assert scenes.holds(captions.parse(edited), scene), (caption, instruction, edited)


def test_a_one_word_error_is_repaired_by_one_phrase():
    caption = "Two red circles left of a blue star."
    scene = scenes.Scene(
        scenes.Thing("circle", "red", 2, "small", "running"), scenes.Thing("star", "blue"), "above", "day"
    )
    instruction = captions.caption_instruction(caption, scene)
    assert instruction.endswith("Therefore, replace 'left of' with 'above'.")
    candidates = {captions.apply_instruction(caption, instruction, random.Random(k)) for k in range(30)}
    assert "Two red circles above a blue star." in candidates
    assert len(candidates) > 1  # some take a liberty, so that choosing the least changed one is a choice


def test_an_instruction_that_does_not_fit_the_caption_is_refused(rng):
    with pytest.raises(ValueError, match="not in the caption"):
        captions.apply_instruction("two red circles", "replace 'a blue star' with 'a heart'", rng)
    with pytest.raises(ValueError, match="No command"):
        captions.apply_instruction("two red circles", "make it nicer", rng)


def test_image_instruction_makes_the_caption_true_of_the_new_scene(rng):
    for _ in range(3000):
        scene, caption = scenes.sample(rng), captions.write(scenes.sample(rng), rng)
        goal = captions.apply_image_instruction(scene, captions.image_instruction(caption, scene))
        assert scenes.holds(captions.parse(caption), goal)
        assert goal == scenes.satisfy(captions.parse(caption), scene)


def test_an_instruction_from_elsewhere_changes_nothing(rng):
    scene = scenes.sample(rng)
    assert captions.apply_image_instruction(scene, "Make the woman's coat green. Replace the dog with a cat.") == scene
