"""What a user does with one GPU, command by command: mine, train, evaluate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from training_runs import curve

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
