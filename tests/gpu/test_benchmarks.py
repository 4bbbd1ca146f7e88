"""The benchmarks run on a GPU and print its utilisation and peak memory for each row; the speed is not tested.

`-s` shows the times of three candidates of a picture, in one call and in three.
"""

from __future__ import annotations

import re
import sys

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


def test_three_candidates_in_one_call_and_in_three(device):
    words = "--size 512 --repeat 2" if device == "cuda" else "--sizes tiny --size 64 --steps 1 --repeat 1"
    shown = run("editor", f"{words} --device {device}")
    sys.stdout.write(shown)
    lines = [line.split() for line in shown.splitlines()]
    for name in ("flux2-klein", "instruct-pix2pix"):
        cells = next(line for line in lines if line[:1] == [name])
        assert all(float(cell) > 0 for cell in cells[3:6]), cells  # seconds to make, of one call, of three
