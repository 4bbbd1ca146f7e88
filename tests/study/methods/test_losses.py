"""The baselines' losses at scale 0 against their known values, with absent negatives, and against slow loops."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from repair_hf.study.methods.losses import WithNegatives, multi_positive, negative_captions, triplet, union
from repair_hf.training.objectives import Vectors

ZERO, SCALE = torch.tensor(0.0), torch.tensor(9.0)


def unit(n: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(n, 6, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.mark.parametrize("batch", [2, 5, 16])
def test_values_at_scale_zero(batch):
    four = [unit(batch, seed) for seed in range(4)]
    images, texts, negative_images, negative_texts = four
    both = math.log(2 * batch) + math.log(batch)
    assert negative_captions(images, texts, negative_texts, ZERO).item() == pytest.approx(both / 2)
    assert triplet(*four, ZERO).item() == pytest.approx(both)
    assert union(images, texts, negative_images, negative_texts, ZERO).item() == pytest.approx(math.log(2 * batch))


def test_without_negatives_these_are_plain_infonce():
    images, texts, none = unit(5), unit(5, 1), torch.zeros(5, 6)
    logits, truth = SCALE * images @ texts.mT, torch.arange(5)
    plain = ((F.cross_entropy(logits, truth) + F.cross_entropy(logits.mT, truth)) / 2).item()
    assert negative_captions(images, texts, none, SCALE).item() == pytest.approx(plain, rel=1e-5)
    assert triplet(images, texts, none, none, SCALE).item() == pytest.approx(plain, rel=1e-5)
    assert union(images, texts, none, none, SCALE).item() == pytest.approx(plain, rel=1e-5)


def test_a_negative_caption_is_a_rival_of_every_image_and_never_asks():
    images, texts, negatives = unit(4), unit(4, 1), unit(4, 2)
    negatives[2] = 0
    of_images = []
    for row in range(4):
        rivals = [*texts, *(negatives[k] for k in (0, 1, 3))]
        scores = torch.stack([SCALE * images[row] @ rival for rival in rivals])
        of_images.append(scores.logsumexp(0) - scores[row])
    of_texts = [(SCALE * images @ text).logsumexp(0) - SCALE * images[k] @ text for k, text in enumerate(texts)]
    expected = (sum(of_images) + sum(of_texts)) / 8
    assert negative_captions(images, texts, negatives, SCALE).item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_vector_alone_with_its_label_adds_nothing():
    vectors = unit(5)
    found = multi_positive(vectors, torch.tensor([0, 0, 1, 1, 2]), 0.1)
    logits = (vectors @ vectors.mT / 0.1).masked_fill(torch.eye(5, dtype=torch.bool), -torch.inf).log_softmax(1)
    expected = -(logits[0, 1] + logits[1, 0] + logits[2, 3] + logits[3, 2]) / 5
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("loss", [negative_captions, triplet, union])
def test_the_objective_leaves_absent_negatives_without_a_gradient(loss):
    images, texts = unit(6).requires_grad_(), unit(6, 1).requires_grad_()
    places = torch.arange(3)
    negatives = {"negative_images": torch.tensor([3, -1, -1]), "negative_texts": torch.tensor([4, -1, -1])}
    inputs = {"anchor_images": places, "anchor_texts": places, **negatives}
    terms = WithNegatives(loss)(Vectors(images, texts, SCALE), inputs)
    terms["loss_global"].value.backward()
    assert torch.isfinite(texts.grad).all() and texts.grad[4].abs().sum() > 0
    assert texts.grad[3].abs().sum() == texts.grad[5].abs().sum() == 0
