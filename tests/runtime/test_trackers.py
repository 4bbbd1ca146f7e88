"""Trackers get the loss curve of a training and the progress of a synthesis; one that is missing is one line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from repair_hf.cli.main import main

TRAINED = {"train/loss", "train/loss_global", "train/logit_scale"}
MADE = {"synthesize/answers", "synthesize/drops", "synthesize/dollars"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small world and its failures."""
    folder = tmp_path_factory.mktemp("tracked")
    sizes = "--train 60 --validation 8 --test 8".split()
    assert main(["world", "build", "--output", str(folder / "world"), *sizes]) == 0
    words = ["--pairs", str(folder / "world"), "--model", "world/base", "--max-queries", "8"]
    assert main(["mine", *words, "--output", str(folder / "failures")]) == 0
    return folder


def commands(folder, tracker: str) -> list[list[str]]:
    shared = ["--pairs", str(folder / "world"), "--model", "world/base", "--report-to", tracker]
    models = "--llm world/oracle --editor world".split()
    made = ["--failures", str(folder / "failures"), "--output", str(folder / tracker / "records")]
    short = "--use-cpu --max-steps 2 --logging-steps 1 --per-device-train-batch-size 8 --lora-rank 1".split()
    return [
        ["synthesize", *shared, *models, *made],
        ["train", *shared, *short, "--output", str(folder / tracker / "out")],
    ]


def test_tensorboard_gets_the_progress_and_the_curve(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = {}
    for words in commands(folder, "tensorboard"):
        assert main(words) == 0
        for path in (folder / "tensorboard").rglob("events.out.tfevents*"):
            events = EventAccumulator(str(path))
            events.Reload()
            seen |= {name: events.Scalars(name)[-1] for name in events.Tags()["scalars"]}
    assert seen.keys() >= TRAINED | MADE
    summary = json.loads((folder / "tensorboard" / "records" / "summary.json").read_text())
    drops = sum(sum(counts["dropped"].values()) for counts in summary["directions"].values())
    assert seen["synthesize/drops"].value == drops
    assert seen["synthesize/answers"].value == sum(use["calls"] for use in summary["llm"]) > 0


def test_trackio_gets_the_progress_and_the_curve(folder, tmp_path):
    pytest.importorskip("trackio")
    script = f"""
import json
from repair_hf.cli.main import main
for words in {commands(folder, "trackio")!r}:
    assert main(words) == 0
from trackio.sqlite_storage import SQLiteStorage as stored
runs = stored.get_runs("huggingface")
print(json.dumps([name for run in runs for name in stored.get_all_metrics_for_run("huggingface", run)]))
"""
    own = {"TRACKIO_DIR": str(tmp_path / "trackio"), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | own, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(json.loads(done.stdout.splitlines()[-1])) >= TRAINED | MADE


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_a_command_says_in_one_line_that_its_tracker_is_missing(folder, capsys):
    for words in commands(folder, "wandb"):
        assert main(words) == 2
        assert "pip install wandb" in capsys.readouterr().err.splitlines()[-1]
