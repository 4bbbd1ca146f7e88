"""Pictures carry their scenes through files, bytes and `datasets`; facts show; editing keeps what it should."""

import random
from dataclasses import replace

import numpy as np
import pytest
from datasets import Dataset, Features
from datasets import Image as ImageFeature

from repair_hf.toyworld import captions, renderer, scenes
from repair_hf.toyworld.editor import WorldEditor
from repair_hf.toyworld.instructions import image_instruction


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


def test_world_editor_makes_the_query_true_and_seeds_differ():
    rng = random.Random(7)
    sources = [scenes.sample(rng) for _ in range(40)]
    queries = [captions.write(scenes.sample(rng), rng) for _ in sources]
    instructions = [image_instruction(query, source) for query, source in zip(queries, sources, strict=True)]
    for query, source, instruction in zip(queries, sources, instructions, strict=True):
        candidates = WorldEditor().edit(renderer.render(source), instruction, [0, 1, 2])
        assert all(scenes.holds(captions.parse(query), renderer.read_scene(c)) for c in candidates)
        assert all(renderer.read_scene(c).layout == source.layout for c in candidates)
        if not scenes.holds(captions.parse(query), source):
            assert len({c.tobytes() for c in candidates}) == 3
