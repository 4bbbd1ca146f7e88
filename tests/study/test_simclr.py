"""SimCLR beside CLIP: a head that trains and is not saved, views that differ."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from children import launch
from safetensors import safe_open
from training_runs import curve

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.encoder.token_store import TokenStore
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.study import losses
from repair_hf.study.losses import HEAD, TwoViews
from repair_hf.training.config import RepairConfig
from repair_hf.training.finetune import train
from repair_hf.training.trainer import RepairTrainer
from tests.study.counting import step


@pytest.fixture
def encoder(clip, clip_processor) -> DualEncoder:
    return DualEncoder(clip, Preprocessor(clip_processor, clip.config), device="cpu")


@pytest.fixture
def objective(encoder, monkeypatch) -> TwoViews:
    """Its head has a few units, so that a test does not train 34 million."""
    monkeypatch.setattr(losses, "HIDDEN", 8)
    monkeypatch.setattr(losses, "OUT", 4)
    monkeypatch.setattr(losses, "SMALLEST", 1)
    return TwoViews(encoder)


@pytest.mark.parametrize("width, hidden", [(768, 4096), (384, 4096), (96, 1024)])
def test_a_narrow_tower_has_a_narrower_head(width, hidden):
    model = torch.nn.Module()
    model.config = SimpleNamespace(vision_config=SimpleNamespace(hidden_size=width))
    assert TwoViews(SimpleNamespace(model=model)).head[3].weight.shape == (hidden, hidden)


def test_two_views_of_each_anchors_image_are_encoded_and_train_tower_and_head(encoder, objective, monkeypatch):
    """Of four images of a batch, two are anchors'; a view adds its number, 1 to 2."""
    encoded, number = [], iter((1, 2))
    monkeypatch.setattr(encoder.preprocessor, "normalize", lambda pixels: encoded.append(pixels) or pixels.float())
    monkeypatch.setattr(objective, "augment", lambda pixels: pixels + next(number))
    size = encoder.model.config.vision_config.image_size
    one = step([[2, 1], [0, 3]], [[0, -1], [1, -1]])
    one.batch["pixels"] = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 3, size, size)
    one.batch["texts"] = [TokenStore(encoder.preprocessor, [["a cat", "a dog"]])[np.arange(2)]]
    terms = objective.terms(one)
    assert encoded[0][:, 0, 0, 0].tolist() == [3, 1, 4, 2]
    terms["loss_views"].backward()
    assert all(weight.grad.abs().sum() > 0 for name, weight in objective.head.named_parameters() if "weight" in name)
    assert all(weight.grad is not None for weight in encoder.model.vision_model.encoder.parameters())


def test_views_are_strong_and_differ(objective):
    pytest.importorskip("kornia", reason="views are made by kornia: pip install 'repair-hf[study]'")
    torch.manual_seed(0)
    pixels = torch.randint(256, (1, 3, 40, 64), dtype=torch.uint8).expand(64, -1, -1, -1)
    one, other = (objective.augment(pixels) for _ in range(2))
    assert one.shape == pixels.shape and one.dtype == torch.uint8
    change = (one.float() - other.float()).abs().mean((1, 2, 3))
    assert (change > 1).all() and len(torch.unique(one.float().mean((1, 2, 3)))) > 60
    grey = ((one.float() - one.float().mean(1, keepdim=True)).abs().amax((1, 2, 3)) <= 1).float().mean()
    assert 0.05 < grey < 0.4  # two of ten


def test_the_head_trains_and_is_not_saved(encoder, objective, pairs_folder, tmp_path, two_steps):
    pytest.importorskip("kornia", reason="views are made by kornia: pip install 'repair-hf[study]'")
    before = objective.head[0].weight.detach().clone()
    pairs = load_pairs(pairs_folder, split="all")
    train(encoder, pairs, None, RepairConfig(**two_steps), objective=objective, callbacks=[objective])
    assert not torch.equal(objective.head[0].weight, before) and not hasattr(encoder.model, HEAD)
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as saved:
        assert not [name for name in saved.keys() if "head" in name]  # noqa: SIM118
    for line in curve(tmp_path / "out"):
        assert line["loss"] == pytest.approx(line["loss_global"] + line["loss_views"], abs=1e-3)


def train_simclr(folder: str, model: str, pairs: str) -> int:
    encoder = DualEncoder.from_pretrained(model, device="cpu")
    objective = TwoViews(encoder)
    config = RepairConfig(folder, max_steps=1, per_device_train_batch_size=4, logging_steps=1, use_cpu=True)
    RepairTrainer(encoder, config, load_pairs(pairs, split="all"), objective=objective, callbacks=[objective]).train()
    return 0


@pytest.mark.slow
def test_each_of_two_processes_masks_the_known_matches_of_its_own_views(clip_folder, pairs_folder, tmp_path):
    pytest.importorskip("kornia", reason="views are made by kornia: pip install 'repair-hf[study]'")
    launch(train_simclr, str(tmp_path / "out"), str(clip_folder), str(pairs_folder))
    assert curve(tmp_path / "out")[0]["loss_views"] > 0


def test_adapters_would_not_train_the_head(objective):
    objective.head.requires_grad_(False)
    with pytest.raises(UserError, match="not trained with adapters"):
        objective.on_train_begin(None, None, None)
