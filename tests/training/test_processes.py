"""Two processes as accelerate starts them, with half of a batch each, train as one process does with the whole."""

from __future__ import annotations

import pytest
from children import launch
from safetensors.torch import load_file
from training_runs import assert_same, curve

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import load_records
from repair_hf.study.losses import TwoViews
from repair_hf.training.config import RepairConfig
from repair_hf.training.trainer import RepairTrainer

RUNS = {
    "both": {"loss": "both"},
    "paper": dict(paper=True),
    "anchors": dict(loss="grid", grid_mean="anchors"),
    "chunks": dict(chunk_size=3),
}


def train_some(folder: str, model: str, pairs: str, records: str, batch_size: int) -> int:
    """Take a step of plain gradient descent with each of the losses."""
    data, kept = load_pairs(pairs, split="all"), load_records(records)
    how = dict(max_steps=1, optim="sgd", learning_rate=1.0, warmup_steps=0, weight_decay=0.0, max_grad_norm=0.0)
    how |= dict(per_device_train_batch_size=batch_size, logging_steps=1, use_cpu=True)
    for name, named in RUNS.items():
        RepairTrainer(model, RepairConfig(f"{folder}/{name}", **how, **named), data, records=kept).train()
    return 0


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_two_processes_take_the_step_of_one(kind, request, pairs_folder, records_folder, tmp_path):
    model = request.getfixturevalue(f"{kind}_folder")
    places = [str(each) for each in (model, pairs_folder, records_folder)]
    train_some(str(tmp_path / "one"), *places, 8)
    launch(train_some, str(tmp_path / "two"), *places, 4)
    for name in RUNS:
        one, two = (load_file(tmp_path / folder / name / "model.safetensors") for folder in ("one", "two"))
        first = load_file(model / "model.safetensors")
        update, other = ({key: side[key] - value for key, value in first.items()} for side in (one, two))
        assert any(value.abs().max() > 1e-3 for value in update.values())
        assert_same(update, other, rtol=1e-3, atol=1e-5)
        (line,), (same,) = (curve(tmp_path / folder / name) for folder in ("one", "two"))
        assert ("loss_grid" in line) == (name != "chunks")
        for term in {"loss", "loss_global", "loss_grid"} & line.keys():
            assert same[term] == pytest.approx(line[term], rel=1e-4, abs=1e-4)


def train_simclr(folder: str, model: str, pairs: str) -> int:
    encoder = DualEncoder.from_pretrained(model, device="cpu")
    objective = TwoViews(encoder)
    config = RepairConfig(folder, max_steps=1, per_device_train_batch_size=4, logging_steps=1, use_cpu=True)
    RepairTrainer(encoder, config, load_pairs(pairs, split="all"), objective=objective, callbacks=[objective]).train()
    return 0


def test_simclr_masks_the_known_matches_of_its_own_views(clip_folder, pairs_folder, tmp_path):
    pytest.importorskip("kornia")
    launch(train_simclr, str(tmp_path / "out"), str(clip_folder), str(pairs_folder))
    assert curve(tmp_path / "out")[0]["loss_views"] > 0
