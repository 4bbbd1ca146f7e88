"""The world on disk: loads like any folder, true in every line, left alone when whole."""

import json

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
    build_world(folder, splits=SMALL, seed=1)
    assert (folder / "captions.jsonl").stat().st_mtime_ns != stamp
