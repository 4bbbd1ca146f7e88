"""The one command for a GPU runs on a CPU at tiny sizes, so that nothing in it is new when a GPU can be had."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_part_prints_its_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setenv("PYTHON", sys.executable)
    done = subprocess.run([ROOT / "benchmarks/gpu.sh", "--tiny"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    first_words = {"mine": "product", "train-world-bf16": "run_clip", "embed": "loop"}
    for part, row in first_words.items():
        lines = (tmp_path / f"{part}.txt").read_text().splitlines()
        assert any(line.startswith(row) and any(map(str.isdigit, line)) for line in lines), lines
    assert " passed" in (tmp_path / "tests.txt").read_text()
