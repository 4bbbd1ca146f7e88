"""The benchmarks run on a GPU and print its utilisation and peak memory for each row; the speed is not tested."""

from __future__ import annotations

import re

import pytest

from tests.benchmarks.scripts import TRAIN, run

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("script", "words", "rows"),
    [
        (
            "mine",
            "--images 400 --texts 2000 --k 10 --repeat 1 --rows mine evaluate",
            ("product", "mine", "evaluate"),
        ),
        ("embed", "--images 64 --texts 500 --batch 32 --repeat 1", ("loop", "ours", "cached", "bf16")),
        ("train", f"{TRAIN} --rows edits chunks", ("run_clip", "edits", "chunks")),
    ],
)
def test_each_row_has_utilisation_and_peak_memory(script, words, rows, device):
    lines = run(script, f"{words} --device {device}").splitlines()
    assert any(re.search("GPU +GPU memory$", line) for line in lines), lines
    use = r" [\d,]+ MiB$" if device == "cuda" else " +-  +-$"
    for row in rows:
        assert any(line.startswith(f"{row}  ") and re.search(use, line) for line in lines), lines
