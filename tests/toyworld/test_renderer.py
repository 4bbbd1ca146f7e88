"""Pictures carry their scenes through files, bytes and `datasets`; facts show; editing keeps what it should."""

import random
from dataclasses import replace

import numpy as np
import pytest
from datasets import Dataset, Features
from datasets import Image as ImageFeature

from repair_hf.toyworld import renderer, scenes
from repair_hf.toyworld.looks import LOOKS


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
