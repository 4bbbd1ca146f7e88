"""What a user does with one GPU, command by command: mine, train, evaluate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_runs import assert_same, curve
from transformers import AutoModel

from repair_hf.cli.main import main

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def records_folder(records, tmp_path_factory) -> Path:
    from datasets import Dataset

    from repair_hf.records.dataset import DROPPED_FEATURES, save_records

    folder = tmp_path_factory.mktemp("records")
    save_records(folder, records, Dataset.from_dict({name: [] for name in DROPPED_FEATURES}, DROPPED_FEATURES))
    return folder


def done(words: str, folder: Path, device: str) -> dict:
    """Run a command; return its summary. On a GPU it must have used the GPU."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    assert main([*words.split(), "--output", str(folder)]) == 0
    if device == "cuda":
        assert torch.cuda.max_memory_allocated() - before > 50e6, "nothing was put on the GPU"
    return json.loads((folder / "summary.json").read_text())


def test_mine_train_and_evaluate(device, world, model_folder, records_folder, tmp_path):
    data, n = f"--pairs {world} --split train", 128
    mined = done(f"mine {data} --model {model_folder}", tmp_path / "failures", device)
    assert mined["directions"]["i2t"]["queries"] == n

    train = f"train {data} --model {model_folder} --records {records_folder} --per-device-train-batch-size 16"
    train += " --max-steps 4 --logging-steps 1"
    done(train + (" --use-cpu" if device == "cpu" else " --bf16"), tmp_path / "trained", device)
    assert len(curve(tmp_path / "trained")) == 4

    evaluated = tmp_path / "evaluated"
    done(f"evaluate {data} --model {tmp_path / 'trained'} --resamples 50", evaluated, device)
    assert json.loads((evaluated / "metrics.json").read_text())["n_images"] == n


ROOT = Path(__file__).parents[2]
PAIRS_PER_STEP = 16


@pytest.fixture(scope="module")
def launchers(device) -> dict[int, list[str]]:
    """Number of processes -> how they are launched."""
    if device == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, found {torch.cuda.device_count()}")
    launch = [sys.executable, "-m", "accelerate.commands.launch"]
    two = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    on_cpu = ["--config_file", str(ROOT / "recipes" / "accelerate" / "cpu-2.yaml")]
    return {1: [sys.executable], 2: [*launch, *(two if device == "cuda" else on_cpu)]}


def test_two_gpus_train_the_model_of_one(launchers, device, world, encoder, records, tmp_path):
    from datasets import Dataset

    from repair_hf.records.dataset import DROPPED_FEATURES, save_records

    save_records(tmp_path / "records", records, Dataset.from_dict({n: [] for n in DROPPED_FEATURES}, DROPPED_FEATURES))
    encoder.model.save_pretrained(tmp_path / "model")
    encoder.preprocessor.save_pretrained(tmp_path / "model")
    words = f"train --pairs {world} --split train --model {tmp_path}/model --records {tmp_path}/records"
    words += " --loss both --max-steps 4 --learning-rate 0.05 --optim sgd --logging-steps 1"
    words += " --use-cpu" if device == "cpu" else ""
    for count, launcher in launchers.items():
        batch = ["--per-device-train-batch-size", str(PAIRS_PER_STEP // count), "--output", str(tmp_path / str(count))]
        one_gpu = {"CUDA_VISIBLE_DEVICES": "0"} if count == 1 else {}
        done = subprocess.run(
            [*launcher, "-m", "repair_hf", *words.split(), *batch],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | one_gpu,
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert (tmp_path / str(count) / "summary.json").is_file(), done.stderr[-4000:]
    one, two = (curve(tmp_path / str(count)) for count in launchers)
    assert len(one) == len(two) == 4
    for mine, theirs in zip(one, two, strict=True):
        for name in ("loss", "loss_global", "loss_grid", "logit_scale"):
            assert theirs[name] == pytest.approx(mine[name], rel=1e-3), name
    assert_same(*(AutoModel.from_pretrained(tmp_path / str(n)).state_dict() for n in launchers), rtol=1e-3, atol=1e-4)
