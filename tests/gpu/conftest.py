"""Tests that need an NVIDIA GPU; `make gpu` runs them.

With REPAIR_HF_GPU_TESTS=cpu they run on the CPU, with a smaller model: this tests their logic.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Generator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from training_runs import curve

from benchmarks.common import random_weights
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.records.columns import FEATURES
from repair_hf.toyworld.corpus import build_world
from repair_hf.training.config import RepairConfig
from repair_hf.training.finetune import train
from repair_hf.training.step import Objective

IMAGES = 128
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # its files import each other by name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Print a failure at once: time on a GPU may end before the summary."""
    report = yield
    if report.failed:
        item.config.get_terminal_writer().line(f"\n{item.nodeid}\n{report.longreprtext}")
    return report


class Run(NamedTuple):
    """A finished training."""

    folder: Path
    model: torch.nn.Module
    curve: list[dict]  # one line per step
    memory: int  # peak bytes allocated on the GPU; 0 on the CPU


@pytest.fixture(scope="session", autouse=True)
def device() -> str:
    if os.environ.get("REPAIR_HF_GPU_TESTS") == "cpu":
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("torch finds no NVIDIA GPU; REPAIR_HF_GPU_TESTS=cpu runs these tests on the CPU")
    return "cuda"


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    splits = {"train": IMAGES, "validation": 1, "test": 1}
    return build_world(tmp_path_factory.mktemp("world"), splits=splits)


@pytest.fixture(scope="session")
def pairs(world) -> Pairs:
    return load_pairs(world, split="train")


@pytest.fixture(scope="session")
def records(pairs):
    """One failure of each image and of each image's first caption. Other items of the pairs stand for the edits."""
    from datasets import Dataset

    rng, rows = random.Random(0), []
    images, texts = pairs.images, pairs.captions["caption"]
    names, captions = images["image_id"][:], pairs.captions["caption_id"][:]
    for image in range(len(images)):
        first = int((pairs.caption_image == image).argmax())
        fp, edit = rng.sample([other for other in range(len(images)) if other != image], 2)
        shown = {"direction": "t2i", "q_id": captions[first], "gt_id": names[image], "fp_id": names[fp]}
        rows.append(shown | {"q_text": texts[first], "edit_image": images[edit]["image"]})
        told = {"direction": "i2t", "q_id": names[image], "gt_id": captions[first], "fp_id": captions[5 * fp]}
        rows.append(told | {"gt_text": texts[first], "fp_text": texts[5 * fp], "edit_text": texts[5 * edit]})
    for number, row in enumerate(rows):
        row |= {"record_id": f"{number:016x}", "fp_score": rng.random(), "error_types": []}
    return Dataset.from_list([dict.fromkeys(FEATURES) | row for row in rows], features=FEATURES)


@pytest.fixture(scope="session")
def encoder(device, pairs) -> DualEncoder:
    """A retriever with random weights: ViT-B/32 on a GPU, the toy world's small one on the CPU. Only read it."""
    architecture = "vit-b-32" if device == "cuda" else "world"
    return DualEncoder(*random_weights(architecture, pairs.captions["caption"][:]), device=device, batch_size=64)


@pytest.fixture(scope="session")
def model_folder(encoder, tmp_path_factory) -> Path:
    """The retriever in a folder. Only read it."""
    folder = tmp_path_factory.mktemp("retriever")
    encoder.model.save_pretrained(folder)
    encoder.preprocessor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def fit(device, encoder, pairs, records, tmp_path_factory):
    """Train a copy of the retriever on edits, without dropout and in the same order each time."""
    plain: dict[str, Any] = dict(per_device_train_batch_size=16, learning_rate=1e-4, warmup_steps=2, max_steps=20)
    plain |= dict(logging_steps=1, use_cpu=device == "cpu", report_to="none")

    def run(
        model: DualEncoder = encoder, checkpoint: str | None = None, objective: Objective | None = None, **named: Any
    ) -> Run:
        folder = tmp_path_factory.mktemp("run")
        config = RepairConfig(output_dir=str(folder), **(plain | named))
        trained = DualEncoder(deepcopy(model.model), model.preprocessor, device=device)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        train(trained, pairs, records, config, checkpoint=checkpoint, objective=objective)
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        return Run(folder, trained.model, curve(folder), peak)

    return run


@pytest.fixture(scope="session")
def in_float32(fit) -> Run:
    return fit()
