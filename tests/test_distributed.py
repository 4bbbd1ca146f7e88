"""Two real processes under `accelerate launch` against one, judged by what they saved."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModel

from repair_hf.cli import main
from repair_hf.records import DROPPED_FEATURES, save_records

PAIRS_PER_STEP = 8
SCRIPT = """
import json, sys
from repair_hf.cli import main

for words in json.loads(sys.argv[1]):
    assert main(words) == 0
"""


@pytest.fixture(scope="module")
def runs(pairs_folder, clip_folder, repaired, tmp_path_factory) -> dict[int, Path]:
    """Number of processes -> folder of the runs that they made: a whole one, and one resumed from its checkpoint."""
    folder = tmp_path_factory.mktemp("runs")
    save_records(
        folder / "records",
        repaired,
        Dataset.from_dict({name: [] for name in DROPPED_FEATURES}, features=DROPPED_FEATURES),
    )
    (folder / "script.py").write_text(SCRIPT)
    shared = f"train --pairs {pairs_folder} --split all --model {clip_folder} --records {folder / 'records'} --use-cpu"
    shared += " --slot1 mixed --max-steps 9 --learning-rate 0.5 --optim sgd --logging-steps 1"
    shared += " --save-strategy steps --save-steps 5"
    shared += f" --cache-folder {folder / 'cache'}"
    for processes in (1, 2):
        output = folder / str(processes)
        flags = [*shared.split(), "--per-device-train-batch-size", str(PAIRS_PER_STEP // processes), "--output"]
        whole = [*flags, str(output / "whole")]
        resumed = [*flags, str(output / "resumed"), "--resume-from-checkpoint", str(output / "whole" / "checkpoint-5")]
        if processes == 1:
            assert main(whole) == 0
        else:  # in chunks too, which must change nothing
            whole, resumed = ([*words, "--chunk-size", "5"] for words in (whole, resumed))
            launch(folder / "script.py", json.dumps([whole, resumed]), processes, output / "resumed" / "summary.json")
    return {1: folder / "1", 2: folder / "2"}


def launch(script: Path, argument: str, processes: int, proof: Path) -> None:
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(processes)]
    launcher += [
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
        "--main_process_port",
        "0",
    ]
    done = subprocess.run(
        [*launcher, str(script), argument],
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    # Not by the exit code: gloo's threads now and then abort the interpreter on its way out, when all is saved.
    assert proof.is_file(), done.stderr[-4000:]


def test_two_processes_ran(runs):
    for processes, folder in runs.items():
        assert json.loads((folder / "whole" / "summary.json").read_text())["processes"] == processes


def test_two_processes_make_the_model_of_one(runs):
    one, two = (AutoModel.from_pretrained(folder / "whole").state_dict() for folder in runs.values())
    for name, value in one.items():
        torch.testing.assert_close(
            two[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_two_processes_log_the_losses_of_one(runs):
    one, two = (curve(folder / "whole") for folder in runs.values())
    assert len(one) == len(two) == 9
    for mine, theirs in zip(one, two, strict=True):
        for name in ("loss", "loss_global", "loss_grid", "logit_scale", "grad_norm"):
            assert theirs[name] == pytest.approx(mine[name], rel=1e-3), name


def test_a_resumed_run_of_two_processes_ends_where_the_whole_one_does(runs):
    whole, resumed = (AutoModel.from_pretrained(runs[2] / name).state_dict() for name in ("whole", "resumed"))
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value, rtol=1e-5, atol=1e-6)


def curve(folder: Path) -> list[dict]:
    return [line for line in json.loads((folder / "trainer_state.json").read_text())["log_history"] if "loss" in line]
