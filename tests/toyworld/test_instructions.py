"""Edit instructions: they name what is wrong, and carrying them out puts it right."""

import random

import pytest

from repair_hf.toyworld import captions, instructions, scenes


@pytest.fixture
def rng():
    return random.Random(0)


def test_caption_instruction_makes_the_caption_true(rng):
    seen = set()
    for _ in range(1000):
        scene, caption = scenes.sample(rng), captions.write(scenes.sample(rng), rng)
        if scenes.holds(captions.parse(caption), scene):
            continue
        kinds, instruction = instructions.caption_instruction(caption, scene)
        assert set(kinds) == {gap.kind for gap in scenes.differences(captions.parse(caption), scene)}
        edited = instructions.apply_instruction(caption, instruction, rng)
        assert scenes.holds(captions.parse(edited), scene), (caption, instruction, edited)
        seen |= set(kinds)
    assert seen == set(scenes.ERROR_TYPES)


def test_a_one_word_error_is_repaired_by_one_phrase():
    caption = "Two red circles left of a blue star."
    circles = scenes.Thing("circle", "red", 2, "small", "running")
    scene = scenes.Scene(circles, scenes.Thing("star", "blue"), "above", "day")
    _, instruction = instructions.caption_instruction(caption, scene)
    assert instruction.endswith("Therefore, replace 'left of' with 'above'.")
    candidates = {instructions.apply_instruction(caption, instruction, random.Random(k)) for k in range(30)}
    assert "Two red circles above a blue star." in candidates
    assert len(candidates) > 1  # some take a liberty, so that choosing the least changed one is a choice


def test_an_instruction_that_does_not_fit_the_caption_is_refused(rng):
    with pytest.raises(ValueError, match="not in the caption"):
        instructions.apply_instruction("two red circles", "replace 'a blue star' with 'a heart'", rng)
    with pytest.raises(ValueError, match="No command"):
        instructions.apply_instruction("two red circles", "make it nicer", rng)


def test_image_instruction_makes_the_caption_true_of_the_new_scene(rng):
    for _ in range(1000):
        scene, caption = scenes.sample(rng), captions.write(scenes.sample(rng), rng)
        wanted = scenes.satisfy(captions.parse(caption), scene)
        goal = instructions.apply_image_instruction(scene, instructions.scene_instruction(scene, wanted))
        assert scenes.holds(captions.parse(caption), goal) and goal == wanted, (caption, scene)
        gaps = {gap.kind for gap in scenes.differences(captions.parse(caption), scene)}  # empty if it fits already
        types = instructions.image_errors(scene, wanted)
        assert (goal == scene) == (not gaps) == (not types)
        assert gaps <= {*types, "Hallucination"} and set(types) <= {*gaps, "Object"}
