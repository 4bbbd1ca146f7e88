"""`benchmarks/facts.py` on a tiny world: what it prints stands beside the paper's figures, and in a file."""

import json

import pytest

from tests.benchmarks.scripts import run


@pytest.mark.slow
def test_facts_stand_beside_the_papers_and_a_second_run_measures_nothing(tmp_path):
    words = "--train 24 --validation 10 --max-queries 8 --epochs 0.5 --batch-size 8 --output"
    command = f"{words} {tmp_path}"
    table = run("facts", command).partition("COCO30K and the toy world")[2]
    found = json.loads((tmp_path / "facts.json").read_text())
    longer, overlap = found.pop("twice the epochs add"), found.pop("overlap")
    assert list(overlap) == ["training", "edits"]
    assert len(found) == 20
    for name in found:
        assert name in table
        assert found[name]["here"] is None or 0 <= found[name]["here"] <= 100
    passed = [found[f"failures that pass the audit, {side}"]["here"] for side in ("I2T", "T2I")]
    assert all(0 < share < 100 for share in passed)
    metrics = json.loads((tmp_path / "evaluate" / "base" / "metrics.json").read_text())
    assert found["base R@1, T2I"]["here"] == pytest.approx(100 * metrics["t2i_R@1"])
    assert f"{longer['i2t']:+.1f} points of I2T R@1" in table
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")}
    assert run("facts", command) and len(before) > 5
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("summary.json")} == before
