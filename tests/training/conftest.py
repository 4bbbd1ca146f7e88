"""Short trainings of a tiny CLIP on twelve images with two captions each."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from training_runs import weights

from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.pairs.dataset import load_pairs
from repair_hf.training.config import RepairConfig
from repair_hf.training.trainer import RepairTrainer

OF_TRAINER = ("callbacks", "fill", "objective", "optimizers", "peft_config", "truth")
SHORT = dict(per_device_train_batch_size=4, max_steps=3, learning_rate=1e-2, logging_steps=1, use_cpu=True)


@pytest.fixture(scope="session")
def pairs(pairs_folder):
    return load_pairs(pairs_folder, split="all")  # 12 images, 24 captions


@pytest.fixture
def config(tmp_path):
    def make(folder: str = "out", **named) -> RepairConfig:
        return RepairConfig(output_dir=str(tmp_path / folder), **(SHORT | named))

    return make


@pytest.fixture
def preprocessor(clip, clip_processor):
    return Preprocessor(clip_processor, clip.config)


@pytest.fixture
def make_trainer(clip, preprocessor, pairs, config):
    """Make a trainer of a copy of the CLIP; `named` are arguments of the trainer or of the configuration."""

    def make(records=None, folder="out", *, model=None, train_pairs=pairs, validation=None, **named) -> RepairTrainer:
        given = {name: named.pop(name) for name in OF_TRAINER if name in named}
        model = deepcopy(clip) if model is None else model
        processor = preprocessor if isinstance(model, torch.nn.Module) else None
        return RepairTrainer(
            model, config(folder, **named), train_pairs, validation, processor, records=records, **given
        )

    return make


@pytest.fixture
def fit(make_trainer):
    """Train a copy of the CLIP, and return the trainer."""

    def run(*args, checkpoint=None, **named) -> RepairTrainer:
        trainer = make_trainer(*args, **named)
        trainer.train(checkpoint)
        return trainer

    return run


@pytest.fixture(scope="session")
def tuned(clip_folder, pairs, repaired, tmp_path_factory) -> Path:
    """The folder of a training of `clip_folder` with records, as `fit` does it. Only read it."""
    folder = tmp_path_factory.mktemp("training") / "tuned"
    RepairTrainer(str(clip_folder), RepairConfig(output_dir=str(folder), **SHORT), pairs, records=repaired).train()
    return folder


@pytest.fixture
def one_step(clip, fit):
    """What one step of plain gradient descent adds to the weights."""
    plain = dict(max_steps=1, optim="sgd", learning_rate=1.0, weight_decay=0.0, warmup_steps=0, max_grad_norm=0.0)

    def run(records, folder, **named) -> dict[str, torch.Tensor]:
        before = weights(clip)
        after = weights(fit(records, folder, **(plain | named)).model)
        return {name: value - before[name] for name, value in after.items()}

    return run
