"""The losses against analytic figures, slow loops, and what their gradients must not touch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import SiglipConfig, SiglipModel
from transformers.models.clip import modeling_clip

from repair_hf.training.losses import ContrastiveLoss, GridLoss, SigmoidLoss

SCALE = torch.tensor(14.0)


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    vectors = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(vectors, dim=-1).float()


def cross_entropy(scores: list[float], truth: int) -> float:
    return math.log(sum(math.exp(score) for score in scores)) - scores[truth]


def slow_grid(images, texts, scale, present, matches) -> tuple[float, int]:
    """The definition, cell by cell, in double precision."""
    losses = []
    for b in range(len(images)):
        slots = [i for i in range(3) if present[b, i]]
        if len(slots) < 2:
            continue
        cell = {
            (i, j): float(scale) * float(images[b, i].double() @ texts[b, j].double()) for i in slots for j in slots
        }
        seen = [(i, j) for i, j in cell if i == j or not matches[b, i, j]]
        total = 0.0
        for q in slots:
            row, column = [(i, j) for i, j in seen if i == q], [(i, j) for i, j in seen if j == q]
            for line in (row, column):
                total += cross_entropy([cell[at] for at in line], line.index((q, q)))
        losses.append(total / (2 * len(slots)))
    return (sum(losses) / len(losses) if losses else 0.0), len(losses)


@pytest.mark.parametrize("batch", [1, 2, 7, 128])
def test_contrastive_loss_of_equal_logits_is_ln_of_the_batch(batch):
    zeros = torch.zeros(batch, 4)
    assert ContrastiveLoss()(zeros, zeros, SCALE)["loss"].item() == pytest.approx(math.log(batch), abs=1e-6)


@pytest.mark.parametrize(
    ("slots", "expected"), [((1, 1, 1), math.log(3)), ((1, 1, 0), math.log(2)), ((1, 0, 1), math.log(2))]
)
def test_grid_loss_of_equal_logits_is_ln_of_its_side(slots, expected):
    zeros, present = torch.zeros(4, 3, 5), torch.tensor([slots] * 4, dtype=torch.bool)
    found = GridLoss()(zeros, zeros, SCALE, present)
    assert found["loss"].item() == pytest.approx(expected, abs=1e-6)
    assert found["grids"].item() == 4


def test_contrastive_loss_is_the_one_of_transformers():
    images, texts = unit(6, 5), unit(6, 5, seed=1)
    name = "image_text_contrastive_loss" if hasattr(modeling_clip, "image_text_contrastive_loss") else "clip_loss"
    expected = getattr(modeling_clip, name)(SCALE * texts @ images.mT)  # renamed after 5.4
    torch.testing.assert_close(ContrastiveLoss()(images, texts, SCALE)["loss"], expected)


@pytest.mark.parametrize("seed", range(4))
def test_grid_loss_equals_a_triple_loop(seed):
    images, texts = unit(9, 3, 5, seed=seed), unit(9, 3, 5, seed=seed + 50)
    random = torch.Generator().manual_seed(seed)
    present = torch.rand(9, 3, generator=random) < 0.7
    matches = torch.rand(9, 3, 3, generator=random) < 0.2  # some of them on the diagonal, where they mean nothing
    loss, grids = slow_grid(images, texts, SCALE, present, matches)
    found = GridLoss()(images, texts, SCALE, present, matches)
    assert found["loss"].item() == pytest.approx(loss, rel=1e-5)
    assert found["grids"].item() == grids
    whole = GridLoss()(images, texts, SCALE, torch.ones_like(present))
    torch.testing.assert_close(GridLoss()(images, texts, SCALE), whole)


def test_what_an_absent_slot_holds_changes_nothing_and_gets_no_gradient():
    present = torch.tensor([[True, False, True], [True, True, True], [True, False, False]])
    images, texts = unit(3, 3, 5).requires_grad_(), unit(3, 3, 5, seed=1).requires_grad_()
    loss = GridLoss()(images, texts, SCALE, present)["loss"]
    loss.backward()
    other = torch.where(present[..., None], images.detach(), unit(3, 3, 5, seed=9))
    assert GridLoss()(other, texts, SCALE, present)["loss"].item() == loss.item()
    in_a_grid = present & (present.sum(1, keepdim=True) >= 2)
    for gradient in (images.grad, texts.grad):
        assert gradient.isfinite().all()
        assert (gradient[~in_a_grid] == 0).all()
        assert (gradient[in_a_grid].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("slots", [(0, 0, 0), (1, 0, 0)])
def test_a_batch_without_a_grid_gives_a_zero_that_can_be_backpropagated(slots):
    images, scale = unit(4, 3, 5).requires_grad_(), torch.tensor(5.0, requires_grad=True)
    found = GridLoss()(images, unit(4, 3, 5, seed=1), scale, torch.tensor([slots] * 4, dtype=torch.bool))
    assert found["loss"].item() == 0 and found["grids"].item() == 0
    found["loss"].backward()
    assert (images.grad == 0).all() and scale.grad == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_of_half_precision_vectors_are_computed_in_float32(dtype):
    """A logit near 100 has steps of 0.5 in bfloat16: a loss computed there would be of no use."""
    images, texts = unit(6, 3, 16).to(dtype), unit(6, 3, 16, seed=1).to(dtype)
    scale = torch.tensor(100.0)
    for loss, cut in ((GridLoss(), slice(None)), (ContrastiveLoss(), (slice(None), 0))):
        exact = loss(images[cut].float(), texts[cut].float(), scale)["loss"]
        assert loss(images[cut], texts[cut], scale)["loss"].item() == exact.item()


def test_gradient_is_the_numerical_one():
    present = torch.tensor([[True, True, True], [True, False, True], [True, False, False]])
    matches = torch.zeros(3, 3, 3, dtype=torch.bool)
    matches[0, 0, 2] = True
    images, texts = unit(3, 3, 4).requires_grad_(), unit(3, 3, 4, seed=1)
    GridLoss()(images, texts, SCALE, present, matches)["loss"].backward()
    step, numeric = 1e-4, torch.zeros(images.shape, dtype=torch.float64)
    for at in torch.cartesian_prod(*map(torch.arange, images.shape)).tolist():
        nudge = torch.zeros(images.shape, dtype=torch.float64)
        nudge[tuple(at)] = step
        up, _ = slow_grid(images.detach() + nudge, texts, SCALE, present, matches)
        down, _ = slow_grid(images.detach() - nudge, texts, SCALE, present, matches)
        numeric[tuple(at)] = (up - down) / (2 * step)
    torch.testing.assert_close(images.grad.double(), numeric, atol=1e-4, rtol=1e-3)


def test_the_sigmoid_loss_is_that_of_transformers_and_leaves_out_what_is_hidden():
    text = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
    vision = {name: value for name, value in text.items() if name != "vocab_size"} | dict(image_size=8, patch_size=4)
    config = SiglipConfig(text_config=text | dict(max_position_embeddings=4), vision_config=vision)
    model = SiglipModel(config).eval()
    model.logit_scale.data.fill_(1.5), model.logit_bias.data.fill_(-2.0)
    inputs = dict(input_ids=torch.randint(9, (5, 4)), pixel_values=torch.randn(5, 3, 8, 8))
    found = model(**inputs, return_loss=True)
    given = found.image_embeds, found.text_embeds, model.logit_scale.exp(), model.logit_bias
    torch.testing.assert_close(SigmoidLoss()(*given)["loss"], found.loss)
    hidden = torch.zeros(5, 5, dtype=torch.bool)
    hidden[0, 3] = True
    left = torch.nn.functional.softplus(found.logits_per_image[0, 3])
    torch.testing.assert_close(SigmoidLoss()(*given, hidden)["loss"], found.loss - left / 5)
