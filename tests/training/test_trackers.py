"""A tracker gets the loss curve of a training; one that is missing is one line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from repair_hf.cli.main import main


@pytest.fixture
def words(pairs_folder, clip_folder, tmp_path) -> list[str]:
    train = f"train --pairs {pairs_folder} --split all --model {clip_folder} --output {tmp_path / 'out'} --use-cpu"
    return f"{train} --max-steps 2 --logging-steps 1 --per-device-train-batch-size 4 --report-to".split()


def test_trackio_gets_the_curve(words, tmp_path):
    pytest.importorskip("trackio")
    script = f"""
import json
from repair_hf.cli.main import main
assert main({[*words, "trackio"]!r}) == 0
from trackio.sqlite_storage import SQLiteStorage as stored
runs = stored.get_runs("huggingface")
print(json.dumps([name for run in runs for name in stored.get_all_metrics_for_run("huggingface", run)]))
"""
    own = {"TRACKIO_DIR": str(tmp_path / "trackio"), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | own, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert {"train/loss", "train/logit_scale"} <= set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_a_missing_tracker_is_one_line(words, capsys):
    assert main([*words, "wandb"]) == 2
    assert "pip install wandb" in capsys.readouterr().err.splitlines()[-1]
