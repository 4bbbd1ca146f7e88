"""What a training says of itself: the edits that its steps use, what a step costs, its progress, and its trackers."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from training_runs import weights

from repair_hf.cli.main import main
from repair_hf.runtime import progress
from repair_hf.training.report import measure_step, warn_of_plan


def used_in(trainer, keys) -> dict[str, int]:
    """Draw anchor by anchor, and count the distinct edits."""
    images, texts = set(), set()
    for epoch, anchor in keys:
        drawn = trainer.fill.draw(np.array([epoch]), np.array([anchor]))
        images |= {int(row) for row in drawn[0].ravel() if row >= 12}
        texts |= {int(row) for row in drawn[1].ravel() if row >= 24}
    return {"i2t": len(texts), "t2i": len(images)}


@pytest.mark.parametrize("named", [{}, dict(paper=True)])
def test_a_plan_counts_the_edits_of_its_steps(named, repaired, make_trainer):
    trainer = make_trainer(repaired, max_steps=2, **named)
    planned = trainer.plan
    trainer.sampler.set_epoch(0)
    assert planned["edits_encoded"] == used_in(trainer, [*trainer.sampler][: 2 * 4])
    n_edits = sum(planned["fill"][f"edits_{way}"] for way in ("i2t", "t2i"))
    assert planned["edits_trained"] == pytest.approx(sum(planned["edits_encoded"].values()) / n_edits)
    assert make_trainer(None, "plain").plan["edits_trained"] is None
    assert planned["steps"] == 2 and planned["objective"] == ("grid" if named else "batch")
    whole = make_trainer(repaired, "whole", max_steps=-1, num_train_epochs=5, **named).plan
    keys = [(epoch, anchor) for epoch in range(5) for anchor in range(24)]
    assert whole["steps"] == 6 * 5 and whole["edits_encoded"] == used_in(trainer, keys)


def test_few_used_edits_give_a_warning_before_the_training(repaired, fit, make_trainer, caplog):
    first = fit(repaired, max_steps=1)
    n_used = first.summary["edits_encoded"]
    shares = " and ".join(f"{n_used[way] / 12:.0%} of the {way.upper()} edits" for way in ("i2t", "t2i"))
    assert f"This training uses {shares}. Train for more epochs." in caplog.text
    caplog.clear()
    for records, steps in ((repaired, 30), (None, 1)):
        warn_of_plan(make_trainer(records, max_steps=steps).plan)
    assert "edits" not in caplog.text


@pytest.mark.parametrize("directions", ["i2t", "t2i", "i2t t2i"])
def test_the_papers_grid_trains_all_edits_of_one_direction_and_of_both_in_30_epochs(
    directions, repaired, make_trainer
):
    records = repaired.filter(lambda row: row["direction"] in directions)
    planned = make_trainer(records, max_steps=-1, num_train_epochs=30, paper=True).plan
    assert sum(planned["edits_encoded"].values()) == len(records) == 12 * len(directions.split())
    assert planned["edits_trained"] == 1


def test_two_steps_are_measured_and_leave_nothing(repaired, make_trainer, pairs, tmp_path):
    how = dict(validation=pairs, max_steps=9, save_strategy="steps", save_steps=1, report_to="tensorboard")
    trainer = make_trainer(repaired, **how)
    before, planned = weights(trainer.model), trainer.plan
    found = measure_step(trainer)
    assert trainer.state.global_step == 2 and found["seconds"] > 0 and found["memory"] > 2**26
    assert any(not value.equal(before[name]) for name, value in weights(trainer.model).items())
    assert trainer.plan == planned and not list((tmp_path / "out").rglob("*"))


def test_a_file_gets_the_loss_and_the_time_left_once_a_minute(repaired, fit, pairs, capsys, monkeypatch):
    how = dict(loss="both", max_steps=4, logging_steps=2, validation=pairs, eval_strategy="steps", eval_steps=3)
    fit(repaired, "short", max_steps=1)
    assert "Training" not in capsys.readouterr().err
    monkeypatch.setattr(progress, "EVERY", 0.0)  # then each step is a minute
    fit(repaired, "long", **how)
    states = [state for state in capsys.readouterr().err.split("\r") if state.startswith("Training")]
    assert re.search(r" 4/4 \[.*, loss \S+, I2T R@1 [\d.]+, T2I R@1 [\d.]+\]", states[-1])


def test_a_terminal_gets_one_bar_and_nothing_else(make_trainer, monkeypatch, capsys):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(progress.sys, "stderr", screen := Terminal())
    monkeypatch.setattr(progress, "WAIT", 0.0)
    make_trainer(max_steps=3).train()
    *others, shown = [line.split("\r")[-1] for line in screen.getvalue().rstrip("\n").split("\n")]
    assert re.search(r"Training: 100%.* 3/3 \[.* steps.*, loss \d", shown)
    assert not [line for line in others if not line.startswith("Decoding images: ")], others
    assert capsys.readouterr().out == ""


# A tracker gets the loss curve of a training


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
