"""Scenes: how a caption differs from them, the nearest one of which it is true, and the pictures that show them."""

import random
from dataclasses import replace

import numpy as np
import pytest
from datasets import Dataset, Features
from datasets import Image as ImageFeature

from repair_hf.toyworld import captions, renderer, scenes
from repair_hf.toyworld.looks import LOOKS
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


@pytest.mark.parametrize("fact", [{"count": 2}, {"size": "large"}, {"action": "running"}])
def test_a_thing_with_a_number_size_or_action_is_the_subject(fact):
    thing = Thing("circle", **fact)
    assert scenes.matchings(Facts(thing)) == [("subject", None)]
    assert scenes.matchings(Facts(Thing("star"), thing)) == [("other", "subject")]


def test_a_thing_that_the_picture_lacks_is_a_hallucination():
    lonely = Scene(SCENE.subject, None, None, "day")
    facts = Facts(Thing("circle", "red", 2), Thing("star", "blue"), "left")
    assert [gap.kind for gap in scenes.differences(facts, lonely)] == ["Hallucination"]


def test_sampled_things_can_always_be_told_apart():
    rng = random.Random(0)
    drawn = [scenes.sample(rng) for _ in range(3000)]
    assert all(s.other is None or (s.other.shape, s.other.color) != (s.subject.shape, s.subject.color) for s in drawn)
    assert 0.1 < sum(s.other is None for s in drawn) / len(drawn) < 0.2


def test_a_scene_is_changed_in_what_a_caption_says_wrongly_and_in_nothing_else():
    rng = random.Random(1)
    for _ in range(1000):
        scene, facts = scenes.sample(rng), captions.parse(captions.write(scenes.sample(rng), rng))
        goal = scenes.satisfy(facts, scene)
        assert scenes.holds(facts, goal) and scenes.satisfy(facts, goal) == goal
        before, after = scenes.facts_of(scene), scenes.facts_of(goal)
        changed = [slot for slot in before if before[slot] != after[slot]]
        assert len(changed) <= len(scenes.differences(facts, scene))


# Pictures carry their scenes; facts show; editing keeps what it should


@pytest.fixture
def scene():
    return scenes.sample(random.Random(5))


def pixels(picture):
    return np.asarray(picture, dtype=int)


def test_scene_survives_png_and_datasets(scene):
    data = renderer.to_png(renderer.render(scene))
    assert renderer.read_scene(data) == scene
    rows = Dataset.from_dict({"image": [{"bytes": data, "path": None}]}, features=Features({"image": ImageFeature()}))
    assert renderer.read_scene(rows[0]["image"]) == scene


def test_every_fact_shows(scene):
    """Changing any one fact changes pixels well beyond jitter's reach, at the 64 px that the base retriever sees."""
    subject = scenes.Thing("circle", "red", 2, "large", "sleeping")
    base = replace(scene, subject=subject, other=scenes.Thing("star", "blue"), relation="left")
    changes = {"shape": "heart", "color": "green", "count": 3, "size": "small", "action": "running"}
    others = [
        *(replace(base, subject=replace(subject, **{name: value})) for name, value in changes.items()),
        replace(base, relation="above"),
        replace(base, other=scenes.Thing("square", "blue")),
        replace(base, other=None, relation=None),
        replace(base, background="night" if base.background == "day" else "day"),
    ]
    before = pixels(renderer.render(base).resize((64, 64)))
    for other in others:
        changed = np.abs(pixels(renderer.render(other).resize((64, 64))) - before).max(axis=2) > 60
        assert changed.sum() >= 20, other


def test_drawing_is_deterministic_and_jitter_is_small(scene):
    assert (pixels(renderer.render(scene)) == pixels(renderer.render(scene))).all()
    jittered = np.abs(pixels(renderer.render(scene, jitter=1)) - pixels(renderer.render(scene)))
    assert jittered.max() > 0
    assert (jittered.max(axis=2) > 60).mean() < 0.1


@pytest.mark.parametrize("look", LOOKS)
def test_an_edit_keeps_the_look_and_every_pixel_far_from_what_changed(look):
    scene = scenes.sample(random.Random(5), company=0.0, look=look)
    scene = replace(scene, subject=replace(scene.subject, count=1, color="red"))
    before, after = (
        renderer.render(replace(scene, subject=replace(scene.subject, color=color))) for color in ("red", "blue")
    )
    assert renderer.read_scene(renderer.to_png(after)).look == look
    changed = np.abs(np.asarray(before, int) - np.asarray(after, int)).max(axis=2) > 40
    assert changed.sum() > 30 and not changed[:20].any() and not changed[110:].any()


def test_every_figure_lies_in_the_picture():
    """With a margin of two 128ths."""
    rng = random.Random(2)
    for scene in [scenes.sample(rng) for _ in range(1000)]:
        for thing, x, y in renderer._places(scene, 1, rng):
            assert renderer.RADIUS[thing.size] + 2 <= min(x, y, renderer.SIDE - x, renderer.SIDE - y), scene
