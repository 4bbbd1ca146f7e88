"""Scenes and facts: comparison, alignment, and the nearest scene of which a caption is true."""

import random

import pytest

from repair_hf.toyworld import scenes
from repair_hf.toyworld.scenes import Facts, Scene, Thing

SCENE = Scene(Thing("circle", "red", 2, "large", "sleeping"), Thing("star", "blue"), "left", "day", layout=3)


@pytest.mark.parametrize(
    "facts, expected",
    [
        (Facts(Thing("circle", "red", 2)), []),
        (Facts(Thing("star", "blue")), []),  # a bare single thing may stand for the other one
        (Facts(Thing("star", "blue"), Thing("circle", None, 2), "right"), []),  # told from the other side
        (Facts(Thing("square", "red", 2, "large")), ["Object"]),
        (Facts(Thing("circle", "green", 2, "large")), ["Attribute"]),
        (Facts(Thing("circle", "red", 3)), ["Count"]),
        (Facts(Thing("circle", "red", 2, None, "jumping")), ["Action"]),
        (Facts(Thing("circle", "red", 2), Thing("star", "blue"), "above"), ["Relation"]),
        (Facts(Thing("circle", "red", 2), None, None, "night"), ["Attribute"]),
    ],
)
def test_differences_name_the_error_type(facts, expected):
    assert [gap.kind for gap in scenes.differences(facts, SCENE)] == expected


def test_a_thing_that_the_picture_lacks_is_a_hallucination():
    lonely = Scene(SCENE.subject, None, None, "day")
    facts = Facts(Thing("circle", "red", 2), Thing("star", "blue"), "left")
    assert [gap.kind for gap in scenes.differences(facts, lonely)] == ["Hallucination"]


def test_sampled_things_can_always_be_told_apart():
    rng = random.Random(0)
    drawn = [scenes.sample(rng) for _ in range(3000)]
    assert all(s.other is None or (s.other.shape, s.other.color) != (s.subject.shape, s.subject.color) for s in drawn)
    assert 0.1 < sum(s.other is None for s in drawn) / len(drawn) < 0.2
