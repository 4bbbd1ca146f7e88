"""Which captions hold in which scenes, by the table of scenes and one at a time."""

import random

from repair_hf.toyworld import captions, scenes
from repair_hf.toyworld.truth import SceneTable


def test_a_table_compares_a_caption_with_many_scenes_at_once():
    rng, found = random.Random(0), 0
    drawn = [scenes.sample(rng) for _ in range(60)]
    table = SceneTable(drawn)
    for facts in (captions.parse(captions.write(scene, rng)) for scene in drawn for _ in range(5)):
        holds = [scenes.holds(facts, scene) for scene in drawn]
        assert table.matches(facts).tolist() == holds
        found += sum(holds)
    assert found > 300
