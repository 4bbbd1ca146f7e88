"""Captions: what the grammar writes it reads."""

import random

import pytest

from repair_hf.toyworld import captions, scenes


def test_every_written_caption_is_true_of_its_scene():
    rng = random.Random(0)
    for _ in range(3000):
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
