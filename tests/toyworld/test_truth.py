"""Which captions hold in which scenes, by the table of scenes and one at a time."""

import random

import pytest

from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.toyworld import captions, scenes
from repair_hf.toyworld.truth import SceneTable, scenes_of


def test_a_table_compares_a_caption_with_many_scenes_at_once():
    rng, found = random.Random(0), 0
    drawn = [scenes.sample(rng) for _ in range(60)]
    table = SceneTable(drawn)
    for facts in (captions.parse(captions.write(scene, rng)) for scene in drawn for _ in range(5)):
        holds = [scenes.holds(facts, scene) for scene in drawn]
        assert table.matches(facts).tolist() == holds
        found += sum(holds)
    assert found > 300


def test_pictures_without_a_scene_are_refused(pairs_folder):
    with pytest.raises(UserError, match=r"\w+.png carries no scene"):
        list(scenes_of(load_pairs(pairs_folder, split="all")))
