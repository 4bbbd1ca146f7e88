"""Each benchmark runs at a tiny size and prints a row for each of its ways; how fast they are is not tested."""

import pytest

from tests.benchmarks.scripts import TRAIN, run

MINE = ("product", "mine", "mine 5/1", "evaluate", "faiss")
EDITOR = "--sizes tiny --size 64 --steps 1 --repeat 1 --device cpu"
PART = "--train 30 --test 8 --queries 3 --epochs 1 --batch 8"


@pytest.mark.parametrize(
    "script, words, rows",
    [
        ("mine", "--images 40 --texts 200 --dim 16 --k 3 --repeat 1", MINE),
        ("embed", "--images 3 --texts 20 --batch 4 --repeat 1 --rows ours cached", ("loop", "ours", "cached")),
        ("evaluate", "--images 20 --texts 60 --dim 8 --resamples 10 --repeat 2", ("ours", "ours, no intervals")),
        ("llm", "--requests 12 --concurrency 4 --latency 0.01 --repeat 2", ("1", "2", "median ratio")),
        ("replay", "--images 3 --repeat 1", ("rerun 1", "median")),
        pytest.param("train", f"{TRAIN} --rows plain", ("run_clip", "plain"), marks=pytest.mark.slow),
        ("checks", "--train 12 --output {folder}", ("world/erring", "world/oracle")),
        ("table", "--rows 3000", ("3,000",)),
        pytest.param("many_captions", "--captions 1000", ("1,000",), marks=pytest.mark.slow),
        pytest.param("editor", EDITOR, ("flux2-klein", "instruct-pix2pix"), marks=pytest.mark.slow),
        pytest.param("adapters", f"{PART} --rows lora", ("base", "lora"), marks=pytest.mark.slow),
    ],
)
def test_a_row_for_each_way(script, words, rows, tmp_path):
    lines = run(script, words.format(folder=tmp_path)).splitlines()
    for row in rows:
        assert any(line.strip().startswith(row) and any(letter.isdigit() for letter in line) for line in lines), lines
