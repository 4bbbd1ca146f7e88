"""`repair-hf train` from the command line: what it writes, prints and refuses, how it goes on and never repeats."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from repair_hf.cli.main import main


@pytest.fixture
def flags(pairs_folder, clip_folder, records_folder, tmp_path) -> list[str]:
    words = f"train --pairs {pairs_folder} --split all --model {clip_folder} --output {tmp_path / 'out'} --use-cpu"
    words += f" --records {records_folder} --per-device-train-batch-size 4 --max-steps 4 --learning-rate 1e-2"
    return words.split() + ["--cache-folder", str(tmp_path / "cache")]


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_trains_once_and_says_what_comes_next(flags, tmp_path, capsys):
    assert main(flags) == 0
    printed = capsys.readouterr().out
    found = summary(tmp_path / "out")
    assert found["steps"] == 4 and found["grids"]["anchors"] == 24
    assert f"anchors 24   {found['grids']['grids_3']} with 3 slots" in printed
    assert "next: repair-hf evaluate --pairs" in printed and f"--model {tmp_path / 'out'}" in printed
    weights = tmp_path / "out" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert main(flags) == 0  # nothing is trained again
    assert (weights.stat().st_mtime_ns, capsys.readouterr().out) == (before, printed)
    assert main([*flags, "--grid-weight", "2"]) == 2
    assert "finished result of other options: grid_weight (0.5 -> 2.0)" in capsys.readouterr().err
    assert AutoModel.from_pretrained(tmp_path / "out").config.model_type == "clip"


def test_a_stopped_run_goes_on_from_its_newest_checkpoint(flags, tmp_path):
    going_on = [*flags, "--save-strategy", "steps", "--save-steps", "3"]
    assert main(going_on) == 0
    whole = AutoModel.from_pretrained(tmp_path / "out").state_dict()
    for name in ("summary.json", "model.safetensors", "trainer_state.json"):  # as if killed between steps 3 and 4
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / "checkpoint-4").rename(tmp_path / "gone")
    assert main(going_on) == 0
    for name, value in AutoModel.from_pretrained(tmp_path / "out").state_dict().items():
        assert value.equal(whole[name]), name


def test_what_was_begun_goes_on_with_its_own_options_alone(flags, tmp_path, capsys):
    assert main([*flags, "--save-strategy", "steps", "--save-steps", "3"]) == 0
    (tmp_path / "out" / "summary.json").unlink()  # as if killed before the end
    assert main([*flags, "--save-strategy", "steps", "--save-steps", "3", "--grid-weight", "2"]) == 2
    assert "an interrupted run of other options: grid_weight (0.5 -> 2.0)" in capsys.readouterr().err
    faster = ["--chunk-size", "2", "--dataloader-num-workers", "1", "--logging-steps", "2"]  # learns the same
    assert main([*flags, "--save-strategy", "steps", "--save-steps", "3", *faster]) == 0
    assert summary(tmp_path / "out")["steps"] == 4


@pytest.mark.slow  # three starts of Python, and 200 steps
@pytest.mark.parametrize("extra", [[], ["--gradient-accumulation-steps", "2", "--chunk-size", "3"]])
def test_a_killed_run_continues_the_curve_of_one_that_was_not(extra, flags, tmp_path):
    steps = "--learning-rate 1e-4 --max-steps 100 --save-strategy steps --save-steps 7 --logging-steps 5".split()
    words = [*flags, "--slot1", "mixed", *steps, *extra]
    python = [sys.executable, "-m", "repair_hf"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # several may add up in another order
    subprocess.run([*python, *words, "--output", str(tmp_path / "whole")], env=one_thread, check=True)
    rng, killed = random.Random(), 0
    while killed < 2 or not (tmp_path / "out" / "summary.json").is_file():
        if (tmp_path / "out" / "summary.json").is_file():  # through before it was killed twice: once more
            shutil.rmtree(tmp_path / "out")
            killed = 0
        process = subprocess.Popen([*python, *words], env=one_thread, stderr=subprocess.DEVNULL)
        before = set(tmp_path.glob("out/checkpoint-*"))
        while process.poll() is None and killed < 2 and set(tmp_path.glob("out/checkpoint-*")) <= before:
            time.sleep(0.005)
        time.sleep(0.3 * rng.random())  # while it trains or writes
        if killed < 2 and process.poll() is None:
            process.kill()
            killed += 1
        process.wait()
    assert killed == 2
    states = [json.loads((tmp_path / name / "trainer_state.json").read_text()) for name in ("whole", "out")]
    whole, resumed = (state["log_history"] for state in states)
    names = ("step", "loss", "loss_global", "loss_grid", "logit_scale", "grad_norm", "learning_rate")
    for one, other in zip(whole[:-1], resumed[:-1], strict=True):  # the last line tells how long it took
        assert [other[name] for name in names] == pytest.approx([one[name] for name in names], rel=1e-5, abs=1e-5)
    assert [line["step"] for line in whole[:4]] == [5, 7, 10, 14]
    weights = [AutoModel.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "out")]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-5)


def test_dry_run_counts_the_grids_and_writes_nothing(flags, tmp_path, capsys):
    assert main([*flags, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "anchors 24" in told
    assert not (tmp_path / "out").exists()
    assert main(flags) == 0
    assert told.partition("anchors")[2] in capsys.readouterr().out  # the very grids that are trained on
    flags = [*flags, "--output", str(tmp_path / "other"), "--dry-run"]
    assert main([*flags, "--negatives", "none"]) == 0
    assert "0 with 3 slots   0 with 2 slots   24 with 0 slots" in capsys.readouterr().out
    assert main([*flags, "--known-matches", "negative"]) == 0
    assert "not left out: true pairs by annotation" in capsys.readouterr().out


def test_evaluation_is_on_the_validation_split(flags, tmp_path, capsys):
    assert main([*flags, "--split", "train", "--eval-strategy", "epoch", "--validation-split", "all"]) == 0
    assert summary(tmp_path / "out")["eval_n_images"] == 12
    assert "eval    R@1 I2T" in capsys.readouterr().out
