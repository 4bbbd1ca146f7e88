"""Two GPUs train the model of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_runs import assert_same, curve
from transformers import AutoModel

pytestmark = pytest.mark.gpu

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
