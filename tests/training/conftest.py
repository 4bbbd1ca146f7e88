"""Short trainings of a tiny CLIP on twelve images with two captions each."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from training_runs import weights

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.pairs.dataset import load_pairs
from repair_hf.training.config import RepairConfig
from repair_hf.training.finetune import train
from repair_hf.training.grids import Grids
from repair_hf.training.trainer import GridTrainer


@pytest.fixture(scope="session")
def pairs(pairs_folder):
    return load_pairs(pairs_folder, split="all")  # 12 images, 24 captions


@pytest.fixture
def config(tmp_path):
    """Make a configuration; its defaults make steps comparable."""

    def make(folder: str = "out", **named) -> RepairConfig:
        plain = dict(per_device_train_batch_size=4, max_steps=3, learning_rate=1e-2, logging_steps=1, use_cpu=True)
        return RepairConfig(output_dir=str(tmp_path / folder), cache_folder=str(tmp_path / "cache"), **(plain | named))

    return make


@pytest.fixture
def preprocessor(clip, clip_processor):
    return Preprocessor(clip_processor, clip.config)


@pytest.fixture
def encoder(clip, preprocessor):
    return DualEncoder(clip, preprocessor, device="cpu")


@pytest.fixture
def fit(clip, preprocessor, pairs, config):
    """Train a copy of the CLIP as it was at first; return its weights and the summary."""
    first = deepcopy(clip)

    def run(
        records, folder="out", *, pairs=pairs, data=None, callbacks=(), **named
    ) -> tuple[dict[str, torch.Tensor], dict]:
        encoder = DualEncoder(deepcopy(first), preprocessor, device="cpu")
        summary = train(encoder, pairs, records, config(folder, **named), data=data, callbacks=callbacks)
        return weights(encoder.model), summary

    return run


@pytest.fixture
def one_step(clip, fit):
    """What one step of plain gradient descent adds to the weights."""
    before = weights(clip)
    plain = dict(max_steps=1, optim="sgd", learning_rate=1.0, weight_decay=0.0, warmup_steps=0, max_grad_norm=0.0)

    def run(records, folder, **named) -> dict[str, torch.Tensor]:
        after, _ = fit(records, folder, **(plain | named))
        return {name: value - before[name] for name, value in after.items()}

    return run


@pytest.fixture
def make_trainer(clip, preprocessor, pairs, config):
    def make(records=None, *, model=clip, **named) -> GridTrainer:
        return GridTrainer(model, config(**named), pairs, None, preprocessor, rows=Grids(pairs, records))

    return make
