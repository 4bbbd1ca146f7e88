"""`repair-hf evaluate` from the command line: its numbers are the library's, on the split that is asked for."""

from __future__ import annotations

import json

import pytest

from repair_hf.cli import main
from repair_hf.encoder import DualEncoder
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.pairs import load_pairs


@pytest.fixture
def flags(pairs_folder, clip_folder, tmp_path) -> list[str]:
    return f"evaluate --pairs {pairs_folder} --split all --model {clip_folder} --output {tmp_path / 'out'}".split()


def test_writes_what_the_library_measures(flags, pairs_folder, clip_folder, tmp_path, capsys):
    assert main(flags) == 0
    pairs = load_pairs(pairs_folder, split="all")
    expected = evaluate_retrieval(*DualEncoder.from_pretrained(clip_folder).embed_pairs(pairs), pairs.caption_image)
    assert json.loads((tmp_path / "out" / "metrics.json").read_text()) == pytest.approx(expected)
    assert (expected["n_images"], expected["n_texts"]) == (12, 24)
    printed = capsys.readouterr().out
    assert "12 images, 24 texts" in printed
    assert f"next: repair-hf mine --pairs {pairs_folder} --model {clip_folder}" in printed


def test_ranks_the_test_split_unless_told_otherwise(flags, pairs_folder, tmp_path):
    del flags[3:5]
    assert main(flags) == 0
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert found["n_images"] == len(load_pairs(pairs_folder, split="test").images) < 12


def test_the_same_command_again_measures_nothing(flags, tmp_path, capsys):
    assert main(flags) == 0
    first, file = capsys.readouterr().out, tmp_path / "out" / "metrics.json"
    before = file.stat().st_mtime_ns
    assert main(flags) == 0
    assert (capsys.readouterr().out, file.stat().st_mtime_ns) == (first, before)


def test_a_dry_run_writes_nothing(flags, tmp_path, capsys):
    assert main([*flags, "--dry-run"]) == 0
    assert "12 images and 24 captions" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
