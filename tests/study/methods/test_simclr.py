"""SimCLR beside CLIP: a head that trains and is not saved, views that differ."""

import pytest
import torch
from safetensors import safe_open
from training_runs import curve

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.pairs.dataset import load_pairs
from repair_hf.study.methods import simclr
from repair_hf.study.methods.simclr import TwoViews
from repair_hf.training.config import RepairConfig
from repair_hf.training.finetune import train
from repair_hf.training.objectives import Vectors
from tests.study.methods.counting import unit


@pytest.fixture
def head(monkeypatch):
    """A head of a few units, so that a test does not train 34 million."""
    monkeypatch.setattr(simclr, "HIDDEN", 8)
    monkeypatch.setattr(simclr, "OUT", 4)
    monkeypatch.setattr(simclr, "SMALLEST", 1)


@pytest.mark.parametrize("width, hidden", [(768, 4096), (384, 4096), (96, 1024)])
def test_a_narrow_tower_has_a_narrower_head(width, hidden):
    assert TwoViews(width).head[3].weight.shape == (hidden, hidden)


def test_the_gradient_reaches_head_and_features(head):
    objective = TwoViews(6, weight=0.25)
    features = torch.randn(9, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    places = torch.arange(3)
    inputs = {"anchor_images": places, "anchor_texts": places, "first_view": 3}
    terms = objective(Vectors(unit(3, 0), unit(3, 1), torch.tensor(9.0), features), inputs)
    assert terms["loss_views"].weight == 0.25
    terms["loss_views"].value.backward()
    assert all(weight.grad.abs().sum() > 0 for name, weight in objective.head.named_parameters() if "weight" in name)
    assert not features.grad[:3].any() and (features.grad[3:].abs().sum(1) > 0).all()


def test_two_views_of_each_image_follow_the_batch(monkeypatch, head):
    objective, calls = TwoViews(6), []
    monkeypatch.setattr(objective, "augment", lambda pixels: calls.append(pixels) or pixels + len(calls))
    pixels = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(4, 3, 2, 2)
    batch = objective.prepare({"pixels": pixels, "anchor_images": torch.tensor([2, 0])})
    assert batch["first_view"] == 4 and batch["pixels"][:, 0, 0, 0].tolist() == [0, 1, 2, 3, 3, 1, 4, 2]


def test_views_are_strong_and_differ(head):
    pytest.importorskip("kornia", reason="views are made by kornia: pip install 'repair-hf[study]'")
    torch.manual_seed(0)
    pixels = torch.randint(256, (1, 3, 40, 64), dtype=torch.uint8).expand(64, -1, -1, -1)
    one, other = (TwoViews(6).augment(pixels) for _ in range(2))
    assert one.shape == pixels.shape and one.dtype == torch.uint8
    change = (one.float() - other.float()).abs().mean((1, 2, 3))
    assert (change > 1).all() and len(torch.unique(one.float().mean((1, 2, 3)))) > 60
    grey = ((one.float() - one.float().mean(1, keepdim=True)).abs().amax((1, 2, 3)) <= 1).float().mean()
    assert 0.05 < grey < 0.4  # two of ten


def test_the_head_trains_and_is_not_saved(clip, clip_processor, pairs_folder, tmp_path, head, two_steps):
    pytest.importorskip("kornia", reason="views are made by kornia: pip install 'repair-hf[study]'")
    encoder = DualEncoder(clip, Preprocessor(clip_processor, clip.config), device="cpu")
    objective = TwoViews(clip.config.vision_config.hidden_size)
    before = objective.head[0].weight.detach().clone()
    config = RepairConfig(**two_steps)
    found = train(encoder, load_pairs(pairs_folder, split="all"), None, config, objective=objective)
    assert not torch.equal(objective.head[0].weight, before)
    assert found["images_per_step"] == 12 and found["texts_per_step"] == 4  # an image and two views of each pair
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as saved:
        assert not [name for name in saved.keys() if "head" in name or "objective" in name]  # noqa: SIM118
    for line in curve(tmp_path / "out"):
        assert line["loss"] == pytest.approx(line["loss_global"] + line["loss_views"], abs=1e-3)
