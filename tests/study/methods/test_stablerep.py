"""StableRep: drawn images are positives of their real ones, by the loss as it is written down."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from repair_hf.study.methods.stablerep import TEMPERATURE, MultiPositive
from repair_hf.training.objectives import Vectors


def unit(n: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(n, 6, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_the_loss_is_the_multi_positive_cross_entropy_beside_infonce():
    """Real images 0, 1, 2; image 3 was drawn of the first anchor's caption, image 4 of the third's."""
    images, texts = unit(5, 0).requires_grad_(), unit(3, 1).requires_grad_()
    places = torch.arange(3)
    inputs = {"anchor_images": places, "anchor_texts": places, "drawn_images": torch.tensor([3, -1, 4])}
    terms = MultiPositive(weight=0.5)(Vectors(images, texts, torch.tensor(9.0)), inputs)

    caption_of = {0: 0, 1: 1, 2: 2, 3: 0, 4: 2}
    total = 0.0
    z = images.detach()
    for i in caption_of:
        others = [j for j in caption_of if j != i]
        logits = {j: float(z[i] @ z[j]) / TEMPERATURE for j in others}
        everything = math.log(sum(math.exp(logit) for logit in logits.values()))
        positives = [j for j in others if caption_of[j] == caption_of[i]]
        total -= sum((logits[j] - everything) / len(positives) for j in positives)
    assert terms["loss_images"].value.item() == pytest.approx(total / 5, rel=1e-5)
    assert terms["loss_images"].weight == 0.5

    logits = 9.0 * images[:3] @ texts.mT
    plain = (F.cross_entropy(logits, places) + F.cross_entropy(logits.mT, places)) / 2
    assert terms["loss_global"].value.item() == pytest.approx(plain.item(), rel=1e-5)


def test_a_batch_without_drawn_images_adds_nothing():
    images = unit(3, 0).requires_grad_()
    inputs = {"anchor_images": torch.arange(3), "anchor_texts": torch.arange(3), "drawn_images": torch.full((3,), -1)}
    loss = MultiPositive()(Vectors(images, unit(3, 1), torch.tensor(9.0)), inputs)["loss_images"].value
    loss.backward()
    assert loss.item() == 0 and not images.grad.any()
