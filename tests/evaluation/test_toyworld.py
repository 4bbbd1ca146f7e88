"""The toy world's compositional set: each caption against the scene, and the whole way through `evaluate`."""

import json
import random
import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.shipped import BASE
from repair_hf.evaluation.toyworld import CATEGORIES, load_world, swap
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.toyworld import captions, renderer, scenes
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.scenes import Scene, Thing, holds


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return build_world(tmp_path_factory.mktemp("world"), splits={"test": 12}, seed=3)


def test_a_swap_keeps_the_words_and_makes_the_caption_false():
    rng, made = random.Random(0), dict.fromkeys(CATEGORIES, 0)
    for _ in range(300):
        scene = scenes.sample(rng)
        caption = captions.write(scene, rng)
        for category in CATEGORIES:
            if (wrong := swap(caption, category, scene)) is None:
                continue
            made[category] += 1
            assert not holds(captions.parse(wrong), scene)
            assert wrong[0].isupper() == caption[0].isupper() and wrong.endswith(".") == caption.endswith(".")
            words, others = (text.lower().rstrip(".").split() for text in (caption, wrong))
            if category in ("attribute", "order"):
                assert sorted(words) == sorted(others)
            if category in ("attribute", "relation"):
                assert len(words) == len(others)
                assert sum(a != b for a, b in zip(words, others, strict=True)) == (2 if category == "attribute" else 1)
    assert min(made.values()) > 150


@pytest.mark.parametrize(
    "category, wrong",
    [
        ("attribute", "Two big blue stars over a red box at night."),
        ("relation", "Two big red stars under a blue box at night."),
        ("order", "A blue box over two big red stars at night."),
    ],
)
def test_what_is_swapped(category, wrong):
    scene = Scene(Thing("star", "red", 2, "large", "jumping"), Thing("square", "blue"), "above", "night")
    assert swap("Two big red stars over a blue box at night.", category, scene) == wrong
    assert swap("Two big red stars under a blue box at night.", category, scene) is None  # false already
    counted = swap("Two big red stars over a blue box at night.", "count", scene)
    assert counted in ("A big red star over a blue box at night.", "Three big red stars over a blue box at night.")


def test_a_swap_that_stays_true_is_none():
    scene = Scene(Thing("star", "red", 1, "large", "jumping"), Thing("square", "red"), "above", "night")
    assert swap("a red star above a red box", "attribute", scene) is None
    assert swap("a red star and a red box", "order", scene) is None
    assert swap("a red star", "relation", scene) is None


def test_the_cases_are_about_the_pairs_own_pictures(world):
    pairs = load_pairs(world, split="test")
    cases = load_world(pairs)
    assert len(cases) == len(set(cases.case_ids)) == sum(cases.counts.values()) > 30
    assert cases.counts == {f"n_{category}": cases.groups.count(category) for category in CATEGORIES}
    for row, (picture,), (true, wrong) in zip(range(len(cases)), cases.picture, cases.caption, strict=True):
        name = pairs.images[int(picture)]["image_id"]
        assert cases.picture_ids[row] == name and cases.case_ids[row] == f"{cases.groups[row]}/{name}"
        scene = renderer.read_scene((world / "images" / name).read_bytes())
        own = [pairs.captions[caption]["caption"] for caption in pairs.captions_of(int(picture))]
        assert cases.captions[true] in own
        assert holds(captions.parse(cases.captions[true]), scene)
        assert not holds(captions.parse(cases.captions[wrong]), scene)


def test_other_pictures_and_other_captions_are_refused(pairs_folder, world, tmp_path):
    with pytest.raises(UserError, match=r"\w+.png carries no scene, unlike pictures of the toy world"):
        load_world(load_pairs(pairs_folder, split="all"))
    (tmp_path / "x.png").write_bytes((world / "images" / "test-00000.png").read_bytes())
    (tmp_path / "captions.jsonl").write_text(json.dumps({"image": "x.png", "captions": ["a dog on a sofa"]}))
    with pytest.raises(UserError, match="reads the captions, and 'a dog on a sofa' is not a caption of the toy"):
        load_world(load_pairs(tmp_path, split="all"))


def test_evaluate_prints_it_beside_the_retrieval(world, tmp_path, capsys):
    flags = f"evaluate world/base --pairs {world} --resamples 20 --output {tmp_path / 'out'} --compositional world"
    assert main([*flags.split(), "--dry-run"]) == 0
    assert re.search(r"\nworld: \d+ cases of \d+ captions\.\n", capsys.readouterr().out)
    assert main(flags.split()) == 0
    printed, found = capsys.readouterr().out, json.loads((tmp_path / "out" / "metrics.json").read_text())
    rows = pq.read_table(tmp_path / "out" / "cases.parquet").to_pandas()
    for category in CATEGORIES:
        assert f"world {category}" in printed
        assert found[f"world_{category}"] == rows[rows["group"] == category]["correct"].mean()
    assert found["world_macro"] == pytest.approx(sum(found[f"world_{category}"] for category in CATEGORIES) / 4)
    assert found["world_micro"] == rows["correct"].mean() and "I2T R@1" in printed
    encoder, pairs = DualEncoder.from_pretrained(BASE), load_pairs(world, split="test")
    cases = load_world(pairs)
    images = encoder.embed_images(pairs.images["image"])[cases.picture[:, 0]]
    right, wrong = (encoder.embed_texts([cases.captions[k] for k in column]) for column in cases.caption.T)
    np.testing.assert_allclose(rows["margin"], (images * (right - wrong)).sum(1), atol=1e-5)
    ties = (rows["margin"] == 0).sum()
    assert f"world: {len(rows)} cases on 12 pictures; cases with a tie: {ties} (base)." in printed
