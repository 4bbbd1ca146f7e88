"""The world's language: captions, edit instructions, variations of captions, and the parser of their words."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest

from repair_hf.runtime.options import UserError
from repair_hf.toyworld import captions, instructions, scenes, variations
from repair_hf.toyworld.domains import DOMAINS
from repair_hf.toyworld.scenes import Thing, holds

# Captions: what the grammar writes it reads


def test_every_written_caption_is_true_of_its_scene():
    rng = random.Random(0)
    for _ in range(1000):
        scene = scenes.sample(rng)
        assert scenes.holds(captions.parse(captions.write(scene, rng)), scene)
    with pytest.raises(ValueError, match="not a caption of the toy world"):
        captions.parse("A woman in a coat walks through an airport.")


def test_nouns_change_their_number_and_back():
    for nouns in captions.NOUNS.values():
        for noun in nouns:
            assert captions.inflect(noun, 1) == noun == captions.singular(captions.inflect(noun, 3))
    assert captions.inflect("box", 2) == "boxes" and captions.inflect("star", 2) == "stars"
    assert captions.parse_thing("two big red balls") == scenes.Thing("circle", "red", 2, "large", None)
    assert captions.parse_thing("two dogs") is None


# Instructions name what is wrong, and carrying them out puts it right


@pytest.fixture
def rng():
    return random.Random(0)


def test_caption_instruction_makes_the_caption_true(rng):
    seen = set()
    for _ in range(400):
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
    for _ in range(400):
        scene, caption = scenes.sample(rng), captions.write(scenes.sample(rng), rng)
        wanted = scenes.satisfy(captions.parse(caption), scene)
        goal = instructions.apply_image_instruction(scene, instructions.scene_instruction(scene, wanted))
        assert scenes.holds(captions.parse(caption), goal) and goal == wanted, (caption, scene)
        gaps = {gap.kind for gap in scenes.differences(captions.parse(caption), scene)}  # empty if it fits already
        types = instructions.image_errors(scene, wanted)
        assert (goal == scene) == (not gaps) == (not types)
        assert gaps <= {*types, "Hallucination"} and set(types) <= {*gaps, "Object"}


# Variations, judged by the world's own truth


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
        assert (other.subject.shape, other.subject.count) == (scene.subject.shape, scene.subject.count)
        assert (other.other and other.other.shape) == (scene.other and scene.other.shape)
        assert instructions.apply_image_instruction(scene, instructions.scene_instruction(scene, other)) == other
        changed += other != scene
    assert changed > 150


def test_a_mistake_leaves_two_things_that_can_be_told_apart():
    """Of two things that swap their colors, neither color can stay: no phrase would name one of them."""
    before = scenes.Scene(Thing("circle", "red", 1, "small", "running"), Thing("circle", "blue"), "left", "day")
    swapped = replace(before, subject=replace(before.subject, color="blue"), other=Thing("circle", "red"))
    night = replace(swapped, background="night")
    for seed in range(16):
        slipped = variations.slip(before, [("other", "color")], random.Random(seed))
        assert slipped != before and scenes.is_clear(slipped)
        assert variations.miss(before, swapped, random.Random(seed)) == swapped
        assert variations.miss(before, night, random.Random(seed)) == swapped


# Tags of all words, and noun chunks of all things


@pytest.fixture(scope="module")
def parser():
    pytest.importorskip("spacy", reason="words are tagged by spaCy: pip install 'repair-hf[study]'")
    from repair_hf.toyworld.parsing import build_parser

    return build_parser()


def test_tags_and_noun_chunks_as_an_english_model_gives_them(parser):
    document = parser("Three tiny jumping hearts right of one green star after dark.")
    tags = "CD JJ VBG NNS IN IN CD JJ NN IN NN .".split()
    assert [token.tag_ for token in document] == tags
    assert [chunk.text for chunk in document.noun_chunks] == ["Three tiny jumping hearts", "one green star", "dark"]
    parts = [token.pos_ for token in parser("a star fast asleep and a box")]
    assert parts == "DET NOUN ADV ADJ CCONJ DET NOUN".split()


def test_without_spacy_one_line_says_what_to_install(monkeypatch):
    from repair_hf.toyworld.parsing import build_parser

    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UserError, match=r"not installed: pip install 'repair-hf\[study\]'"):
        build_parser()


def test_no_word_of_the_grammar_is_unknown(parser):
    rng = random.Random(0)
    for document in parser.pipe(captions.write(scenes.sample(rng), rng) for _ in range(300)):
        assert {token.text for token in document if token.pos_ == "PUNCT"} <= {".", ","}
        named = sum(word in captions.PLURALS for word in document.text.lower().strip(".").replace(",", "").split())
        things = [chunk for chunk in document.noun_chunks if chunk.root.text.lower() in captions.PLURALS]
        assert len(things) == named > 0
