"""The world on disk: loads like any folder, with captions as its domain has them, left alone when whole."""

import json
import random
import shutil
from collections import Counter

import pytest

from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest
from repair_hf.toyworld import captions, renderer, scenes
from repair_hf.toyworld.corpus import SceneTable, build_world, draw_scenes
from repair_hf.toyworld.domains import DOMAINS

SMALL = {"train": 6, "validation": 2, "test": 3}


def read(folder):
    """Return the scene and the captions of each picture, by split."""
    shown = {split: [] for split in ("train", "validation", "test")}
    for line in (folder / "captions.jsonl").read_text().splitlines():
        row = json.loads(line)
        scene = renderer.read_scene((folder / "images" / row["image"]).read_bytes())
        shown[row["split"]].append((scene, row["captions"]))
    return shown


def test_world_folder_is_true_and_resumable(tmp_path):
    folder = build_world(tmp_path / "world", splits=SMALL)
    shown = read(folder)
    assert {split: len(pictures) for split, pictures in shown.items()} == SMALL
    for scene, texts in (picture for pictures in shown.values() for picture in pictures):
        assert len(texts) == 5 and all(scenes.holds(captions.parse(text), scene) for text in texts)
    stamp = (folder / "captions.jsonl").stat().st_mtime_ns
    build_world(folder, splits=SMALL)
    assert (folder / "captions.jsonl").stat().st_mtime_ns == stamp
    whole = (folder / "captions.jsonl").read_text()
    (folder / "summary.json").unlink()  # written last: the world was interrupted
    (folder / "captions.jsonl").unlink()
    build_world(folder, splits=SMALL)
    assert (folder / "captions.jsonl").read_text() == whole


@pytest.mark.parametrize("domain", DOMAINS)
def test_held_out_captions_are_unambiguous_and_training_errs_at_the_domains_rates(tmp_path, domain):
    splits = {"train": 30, "validation": 5, "test": 10}
    shown = read(build_world(tmp_path / "world", splits=splits, domain=domain))
    for split in ("validation", "test"):
        assert len({scene for scene, _ in shown[split]}) == len(shown[split])
        for text in (text for _, texts in shown[split] for text in texts):
            assert sum(scenes.holds(captions.parse(text), scene) for scene, _ in shown[split]) == 1
    said = [scenes.holds(captions.parse(text), scene) for scene, texts in shown["train"] for text in texts]
    wrong = DOMAINS[domain].false + DOMAINS[domain].strange
    assert abs(1 - sum(said) / len(said) - wrong) < 0.06  # of 150; a strange caption is seldom true
    assert {scene.look for pictures in shown.values() for scene, _ in pictures} == {DOMAINS[domain].look}


def test_splits_come_from_one_distribution_whatever_the_size_of_the_others(tmp_path):
    small, more = (read(build_world(tmp_path / str(n), splits=SMALL | {"train": n})) for n in (1, 9))
    assert small["test"] == more["test"] and small["validation"] == more["validation"]
    train, test = (draw_scenes(split, 3000, domain="target") for split in ("train", "test"))
    for fact in ("other", "relation", "background"):  # `other`: whether there is one
        shares = [Counter(bool(value) if fact == "other" else value for value in values)
                  for values in ([getattr(scene, fact) for scene in split] for split in (train, test))]  # fmt: skip
        assert all(abs(shares[0][value] - shares[1][value]) < 5 * (2 * n) ** 0.5 for value, n in shares[0].items())
    with pytest.raises(UserError, match="5,000 pictures"):
        draw_scenes("test", 5000, domain="target")


def test_the_studys_world_stays_as_it_is(tmp_path):
    """If this changes, the study's results are of another world."""
    sizes = {"train": 2000, "validation": 1000, "test": 2000}
    drawn = {
        split: [scene.to_json() for scene in draw_scenes(split, n, domain="target")] for split, n in sizes.items()
    }
    folder = build_world(tmp_path / "world", splits=SMALL, domain="target")
    assert digest([drawn, (folder / "captions.jsonl").read_text()]) == "1addcd1f2762afe1"


def test_captions_of_another_world_or_of_somebody_are_left_alone(tmp_path, pairs_folder):
    photographs = shutil.copytree(pairs_folder, tmp_path / "photographs")
    world = build_world(tmp_path / "world", splits=SMALL)
    for folder, says in ((world, r"with other options: seed \(0 -> 1\)"), (photographs, "no mark of")):
        before = (folder / "captions.jsonl").read_text()
        with pytest.raises(UserError, match=says):
            build_world(folder, splits=SMALL, seed=1)
        assert (folder / "captions.jsonl").read_text() == before


def test_a_table_compares_a_caption_with_many_scenes_at_once():
    rng, found = random.Random(0), 0
    drawn = [scenes.sample(rng) for _ in range(40)]
    table = SceneTable(drawn)
    for facts in (captions.parse(captions.write(scene, rng)) for scene in drawn for _ in range(5)):
        holds = [scenes.holds(facts, scene) for scene in drawn]
        assert table.matches(facts).tolist() == holds
        found += sum(holds)
    assert found > 200
