"""Three candidates of a picture in one call and in three, of each pipeline at its real size; `-s` shows the times."""

from __future__ import annotations

import sys

import pytest

from tests.benchmarks.scripts import run

pytestmark = pytest.mark.gpu


def test_three_candidates_in_one_call_and_in_three(device):
    words = "--size 512 --repeat 2" if device == "cuda" else "--sizes tiny --size 64 --steps 1 --repeat 1"
    shown = run("editor", f"{words} --device {device}")
    sys.stdout.write(shown)
    lines = [line.split() for line in shown.splitlines()]
    for name in ("flux2-klein", "instruct-pix2pix"):
        cells = next(line for line in lines if line[:1] == [name])
        assert all(float(cell) > 0 for cell in cells[3:6]), cells  # seconds to make, of one call, of three
