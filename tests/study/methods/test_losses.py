"""The baselines' losses at scale 0 against their known values, with absent negatives, and against slow loops."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from repair_hf.study.methods.losses import WithNegatives, negative_captions, triplet, two_views, union
from repair_hf.study.methods.new_pairs import PairInGrid
from repair_hf.study.methods.simclr import TwoViews
from repair_hf.study.methods.stablerep import TEMPERATURE, MultiPositive
from repair_hf.training.objectives import LocalGrids, Vectors
from tests.study.methods.counting import unit

ZERO, SCALE = torch.tensor(0.0), torch.tensor(9.0)


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


def test_two_views_is_nt_xent_of_the_paper():
    """Chen et al., 2020, equation 1 and algorithm 1: views 2k - 1 and 2k of image k."""
    one, other = unit(4, 0), unit(4, 1)
    z = [vector for pair in zip(one, other, strict=True) for vector in pair]

    def loss(i: int, j: int) -> float:
        exponentials = [math.exp(float(z[i] @ z[k]) / 0.1) for k in range(8) if k != i]
        return -math.log(math.exp(float(z[i] @ z[j]) / 0.1) / sum(exponentials))

    expected = sum(loss(2 * k, 2 * k + 1) + loss(2 * k + 1, 2 * k) for k in range(4)) / 8
    assert two_views(one, other, 0.1).item() == pytest.approx(expected, rel=1e-5)


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


GROUPS = torch.tensor([0, 1, 0, 2])  # the first and the third row show one product


def info_nce(rows: torch.Tensor, columns: torch.Tensor, is_rival: Callable[[int, int], bool]) -> float:
    """The mean cross-entropy of rows that look for the column of their own number among their rivals."""
    total = 0.0
    for i, row in enumerate(rows):
        scores = {j: float(SCALE * row @ column) for j, column in enumerate(columns) if j == i or is_rival(i, j)}
        total += math.log(sum(map(math.exp, scores.values()))) - scores[i]
    return total / len(rows)


def test_rows_of_one_group_are_no_negatives_of_each_other():
    """Four pairs with a negative pair each; a negative stays one, of its own row and of all others."""
    images, texts, no_images, no_texts = (unit(4, seed) for seed in range(4))

    def is_rival(i: int, j: int) -> bool:  # rows and columns from 4 on are negatives of row i - 4
        return i // 4 != j // 4 or {i % 4, j % 4} != {0, 2}

    of_images, of_texts = torch.cat([images, no_images]), torch.cat([texts, no_texts])
    hard = (info_nce(images, of_texts, is_rival) + info_nce(texts, images, is_rival)) / 2
    mirrored = info_nce(no_images, torch.cat([no_texts, texts]), is_rival) + info_nce(no_texts, no_images, is_rival)
    both = (info_nce(of_images, of_texts, is_rival) + info_nce(of_texts, of_images, is_rival)) / 2
    four = images, texts, no_images, no_texts, SCALE, GROUPS
    assert negative_captions(images, texts, no_texts, SCALE, GROUPS).item() == pytest.approx(hard, rel=1e-5)
    assert triplet(*four).item() == pytest.approx(hard + mirrored / 2, rel=1e-5)
    assert union(*four).item() == pytest.approx(both, rel=1e-5)


def test_views_of_one_group_are_no_negatives_of_each_other():
    """Views k and k + 4 of image k."""
    views, total = torch.cat([unit(4, 0), unit(4, 1)]), 0.0
    for i in range(8):
        rivals = [j for j in range(8) if j != i and (j % 4 == i % 4 or {i % 4, j % 4} != {0, 2})]
        scores = {j: float(views[i] @ views[j]) / 0.1 for j in rivals}
        total += math.log(sum(map(math.exp, scores.values()))) - scores[(i + 4) % 8]
    assert two_views(*views.chunk(2), 0.1, GROUPS).item() == pytest.approx(total / 8, rel=1e-5)


@pytest.mark.parametrize(
    "objective", [LocalGrids(), MultiPositive(), PairInGrid(), TwoViews(6), *map(WithNegatives, (triplet, union))]
)
def test_every_objective_of_the_study_masks_groups(objective):
    torch.manual_seed(0)
    places = torch.arange(4)
    inputs = {f"anchor_{kind}": places for kind in ("images", "texts")} | {"first_view": 4, "drawn_images": places + 4}
    inputs |= {f"negative_{kind}": places + 4 for kind in ("images", "texts")}
    vectors = Vectors(unit(8, 0), unit(8, 1), SCALE, torch.randn(12, 6))
    known = {"wordings": GROUPS[:, None], "answers": GROUPS[:, None, None]}
    plain, masked = objective(vectors, inputs), objective(vectors, inputs | known)
    assert all(masked[name].value < plain[name].value for name in plain if name != "loss_grid")
