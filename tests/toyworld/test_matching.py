"""A table of scenes answers as `holds` does for each of them."""

import random

from repair_hf.toyworld import captions, scenes
from repair_hf.toyworld.matching import SceneTable


def test_matches_equal_holds_scene_by_scene():
    rng = random.Random(0)
    shown = [scenes.sample(rng, company=0.5) for _ in range(200)]
    table = SceneTable(shown)
    bare = captions.Style(other=0.3, color=0.5, size=0.2, action=0.2, background=0.2, joined=0.5)
    answers = [(captions.parse(captions.write(scene, rng, bare)), number) for number, scene in enumerate(shown)]
    found = [table.matches(facts).tolist() for facts, _ in answers]
    assert found == [[scenes.holds(facts, scene) for scene in shown] for facts, _ in answers]
    assert all(row[number] for row, (_, number) in zip(found, answers, strict=True)) and sum(map(sum, found)) > 400
