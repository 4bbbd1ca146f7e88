"""The world on disk: loads like any folder, true in every line, left alone when whole."""

import json
import shutil

import pytest

from repair_hf.runtime.options import UserError
from repair_hf.toyworld import captions, renderer, scenes
from repair_hf.toyworld.corpus import build_world

SMALL = {"train": 6, "validation": 2, "test": 3}


def test_world_folder_is_true_distinct_and_resumable(tmp_path):
    folder = build_world(tmp_path / "world", splits=SMALL)
    rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]
    assert [row["split"] for row in rows] == ["train"] * 6 + ["validation"] * 2 + ["test"] * 3
    shown = [renderer.read_scene((folder / "images" / row["image"]).read_bytes()) for row in rows]
    assert len(set(shown)) == len(rows)
    for row, scene in zip(rows, shown, strict=True):
        assert len(row["captions"]) == 5
        assert all(scenes.holds(captions.parse(text), scene) for text in row["captions"])
    stamp = (folder / "captions.jsonl").stat().st_mtime_ns
    build_world(folder, splits=SMALL)
    assert (folder / "captions.jsonl").stat().st_mtime_ns == stamp
    whole = (folder / "captions.jsonl").read_text()
    (folder / "captions.jsonl").unlink()  # written last: the world was interrupted
    build_world(folder, splits=SMALL)
    assert (folder / "captions.jsonl").read_text() == whole


def test_captions_of_another_world_or_of_somebody_are_left_alone(tmp_path, pairs_folder):
    photographs = shutil.copytree(pairs_folder, tmp_path / "photographs")
    for folder in (build_world(tmp_path / "world", splits=SMALL), photographs):
        before = (folder / "captions.jsonl").read_text()
        says = "holds captions already, and not those of this world .6 train.*seed 1.*another --output"
        with pytest.raises(UserError, match=says):
            build_world(folder, splits=SMALL, seed=1)
        assert (folder / "captions.jsonl").read_text() == before
