"""Captions longer than a model reads are cut as by its processor; `mine`, `train` and `evaluate` report how many."""

import json

import pytest
from PIL import Image

from repair_hf.cli.main import main


@pytest.fixture(scope="module")
def long_pairs(tmp_path_factory):
    folder, lines = tmp_path_factory.mktemp("long"), []
    for number in range(12):
        Image.new("RGB", (40, 30), (20 * number, 0, 90)).save(folder / f"{number}.png")
        captions = [f"a {'red ' * (40 if number == 3 else 1)}circle, number {number}", f"circle {number}"]
        lines.append(json.dumps({"image": f"{number}.png", "captions": captions}))
    (folder / "captions.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("mine --k-mine 5 --d-i2t 2", "captions_cut"),
        ("evaluate --resamples 5", "n_texts_cut"),
        ("train --max-steps 1 --per-device-train-batch-size 2 --use-cpu", "captions_cut"),
    ],
)
def test_captions_that_were_cut_are_counted(words, key, long_pairs, clip_folder, tmp_path, caplog):
    command = [*words.split(), "--model", str(clip_folder), "--pairs", str(long_pairs), "--split", "all"]
    assert main([*command, "--output", str(tmp_path / "out")]) == 0
    assert "1 of 24 captions were truncated to 32 tokens, the most that the model reads" in caplog.text
    assert json.loads((tmp_path / "out" / "summary.json").read_text())[key] == 1
