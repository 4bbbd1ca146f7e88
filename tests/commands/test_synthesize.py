"""`repair-hf synthesize`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repair_hf.cli import main
from repair_hf.encoder import DualEncoder
from repair_hf.mining import mine_false_positives
from repair_hf.pairs import load_pairs
from repair_hf.records import load_records
from repair_hf.toyworld.corpus import build_world


@pytest.fixture(scope="module")
def inputs(clip_folder, tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("inputs")
    world = build_world(folder / "world", splits={"train": 8, "validation": 1, "test": 1})
    pairs, encoder = load_pairs(world), DualEncoder.from_pretrained(clip_folder)
    failures = mine_false_positives(*encoder.embed_pairs(pairs), pairs.caption_image, d_i2t=2)
    (folder / "failures").mkdir()
    failures.select([0, 9, 20, 30, *range(40, 56)]).to_parquet(folder / "failures" / "failures.parquet")
    return ["--pairs", str(world), "--failures", str(folder / "failures"), "--model", str(clip_folder)]


WORLD = ["--llm", "world/oracle", "--editor", "world"]


def synthesize(*words: str) -> int:
    return main(["synthesize", *words])


@pytest.fixture(scope="module")
def output(inputs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("output") / "records"
    assert synthesize(*inputs, *WORLD, "--output", str(folder), "--verdict-noise", "0.3") == 0
    return folder


def test_leaves_a_folder_that_explains_itself(output):
    summary = json.loads((output / "summary.json").read_text())
    assert {way: found["mined"] for way, found in summary["directions"].items()} == {"t2i": 4, "i2t": 16}
    assert len(load_records(output)) == sum(found["kept"] for found in summary["directions"].values())
    assert sum(use["calls"] for use in summary["llm"]) == len((output / "journal.jsonl").read_text().splitlines())
    assert summary["images"]["made"] == len(list((output / "candidates").rglob("*.png")))
    assert {"config.yaml", "command.txt", "versions.json", "README.md"} <= {path.name for path in output.iterdir()}


def test_the_oracle_behind_litellm_makes_the_same_records(inputs, output, tmp_path):
    words = [
        "--llm",
        "litellm:world/oracle",
        "--editor",
        "world",
        "--verdict-noise",
        "0.3",
        "--output",
        str(tmp_path / "r"),
    ]
    assert synthesize(*inputs, *words) == 0
    columns = ["direction", "q_id", "fp_id", "edit_text", "edit_instruction", "fp_reason", "candidate"]
    here, there = (load_records(folder).select_columns(columns).to_list() for folder in (output, tmp_path / "r"))
    assert here == there and len(here) > 0


def test_a_finished_run_is_told_again_and_not_made_again(inputs, output, capsys):
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()}
    assert synthesize(*inputs, *WORLD, "--output", str(output), "--verdict-noise", "0.3", "--concurrency", "2") == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("mined", "kept", "fp too similar", "Count", "replayed", "$0.00", "drawn"))
    assert shown.splitlines()[-1].startswith("next: repair-hf train --pairs ")
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()} == before


def test_other_options_do_not_overwrite_a_result(inputs, output, capsys):
    assert synthesize(*inputs, *WORLD, "--output", str(output), "--seed", "1") == 2
    assert "holds the finished result of other options" in capsys.readouterr().err


def test_a_dry_run_tells_the_price_and_touches_nothing(inputs, tmp_path, capsys):
    words = [*inputs, "--llm", "gemini/gemini-2.5-flash", "--editor", "some/editor", "--candidates", "4"]
    assert synthesize(*words, "--output", str(tmp_path / "new"), "--dry-run") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["edit", "t2i", "4", "0", "16", "$0.00"] in rows
    assert ["edit", "i2t", "16", "64", "0", "$0.01"] in rows
    assert ["all", "20", "104", "16", "$0.02"] in rows
    assert not (tmp_path / "new").exists()


def test_source_images_may_be_left_out(inputs, tmp_path):
    assert synthesize(*inputs, *WORLD, "--output", str(tmp_path), "--no-embed-source-images") == 0
    rows = list(load_records(tmp_path))
    assert all(row["q_image"] is row["gt_image"] is row["fp_image"] is None for row in rows)
    assert sum(row["edit_image"] is not None for row in rows) == sum(row["direction"] == "t2i" for row in rows) > 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--failures", "nowhere"], "--failures nowhere: nowhere does not exist. Make it with `repair-hf mine`."),
        (["--candidates", "0"], "`candidates` must be at least 1, got 0."),
        (["--drift", "2"], "`drift` is a share between 0 and 1, got 2.0."),
        (["--llm", "openai/gpt-4o", "--verdict-noise", "0.1"], "faults of the toy world's oracle"),
        (["--llm-base-url", "http://127.0.0.1:1/v1", "--malformed-rate", "0.1"], "faults of the toy world's oracle"),
        (["--editor", "some/editor", "--drift", "0.1"], "fault of the toy world's editor"),
        (["--editor", "no/such-editor"], "no diffusers pipeline could be loaded"),
        (["--split", "test"], "they were mined from other pairs"),
    ],
)
def test_a_mistake_is_one_line(words, complaint, inputs, tmp_path, capsys):
    assert synthesize(*inputs, *WORLD, "--output", str(tmp_path), *words) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("repair-hf synthesize: error: ")]
    assert len(error) == 1 and complaint in error[0]


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit):
        synthesize("--help")
    shown = capsys.readouterr().out
    assert all(f"--{name}" in shown for name in ("failures", "llm-base-url", "candidates", "verdict-noise", "dry-run"))
