"""The baselines' losses against slow loops, and with known matches."""

import math
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from repair_hf.study.losses import (
    TEMPERATURE,
    HardNegatives,
    MultiPositive,
    Triplet,
    TwoViews,
    multi_positive,
    two_views,
)
from repair_hf.training.step import PairObjective, Step
from tests.study.counting import step, unit

NONE = -1
# Four anchors with a negative pair each, but the third; image 0 is known to match caption 3 and that of its negative.
PAIRS = [[0, 4], [1, 5], [2, NONE], [3, 6]]
CAPTIONS_ALONE = [[row, NONE] for row in range(4)]
KNOWN = (0, 3), (3, 0), (0, 5)


def pull(one: Step, image: int | None, text: int | None, others: Iterable[int]) -> float:
    """Return the cross-entropy of a pair's image among captions, or with `image` None of its caption among images."""
    place = text if image is None else image
    line = one.matrix.detach()[:, place] if image is None else one.matrix.detach()[place]
    return math.log(sum(math.exp(line[other]) for other in others)) - float(line[place])


def places(one: Step) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Return the pairs that are anchors, those beside them, and the cells of known matches off the diagonal."""
    anchors = [p for p, slot in enumerate(one.slots.tolist()) if slot == 0]
    cells = [(i, j) for i in range(len(one.slots)) for j in range(len(one.slots)) if i != j and not one.visible[i, j]]
    return anchors, [p for p in range(len(one.slots)) if p not in anchors], cells


def test_a_negative_caption_is_a_rival_of_every_image_and_looks_for_none():
    one = step(CAPTIONS_ALONE, PAIRS, *KNOWN)
    anchors, _, known = places(one)
    assert len(known) > 3  # and the cells without an image
    total = 0.0
    for p in anchors:
        total += pull(one, p, None, [j for j in range(7) if j == p or one.visible[p, j]]) / 2
        total += pull(one, None, p, [i for i in anchors if i == p or one.visible[i, p]]) / 2
    assert PairObjective("batch").terms(one)["loss_global"].item() == pytest.approx(total / 4, rel=1e-5)


def test_triplets_are_two_such_losses_and_one_where_no_negative_is():
    one = step(PAIRS, PAIRS, *KNOWN)
    anchors, negatives, known = places(one)
    assert len(known) == 3
    expected = 0.0
    for rows in (anchors, negatives):
        for p in rows:
            expected += pull(one, p, None, [j for j in range(7) if (p, j) not in known]) / 2 / len(rows)
            expected += pull(one, None, p, [i for i in rows if (i, p) not in known]) / 2 / len(rows)
    assert Triplet().terms(one)["loss_global"].item() == pytest.approx(expected, rel=1e-5)
    plain = step(CAPTIONS_ALONE, CAPTIONS_ALONE)
    found = Triplet().terms(plain)["loss_global"]
    assert found.item() == pytest.approx(PairObjective("none").terms(plain)["loss_global"].item())


def test_hard_negatives_push_an_anchor_that_has_them_and_what_stands_opposite_has_no_part():
    """Anchor 0 has both, anchor 1 a caption, anchor 2 an image, anchor 3 none; each with an item that fits it."""
    one = step([[0, 4, 6], [1, 5, NONE], [2, NONE, 7], [3, NONE, NONE]],
               [[0, 4, 6], [1, 5, NONE], [2, NONE, 7], [3, NONE, NONE]])  # fmt: skip
    first, second, third = 0, 3, 5  # 3, 2, 2 and 1 pairs
    sides = [
        (pull(one, first, None, [0, 1]) + pull(one, None, first, [0, 2])) / 2,
        pull(one, second, None, [3, 4]),
        pull(one, None, third, [5, 6]),
    ]
    found = HardNegatives(0.25)
    loss = found.terms(one)["loss_grid"]
    assert loss.item() == pytest.approx(sum(sides) / 3, rel=1e-5) and found.weights == {"loss_grid": 0.25}
    one.images.retain_grad()
    loss.backward()
    assert torch.isfinite(one.images.grad).all()
    masked = step([[0, 2, NONE], [1, NONE, NONE]], [[0, 2, NONE], [1, NONE, NONE]], (0, 2))
    assert found.terms(masked)["loss_grid"].item() == 0


@pytest.mark.parametrize("known", [[], [(0, 2)]])
def test_two_views_is_nt_xent_of_the_paper(known):
    """Chen et al., 2020, equation 1 and algorithm 1, with views k and k + 4 of image k."""
    views, total = torch.cat([unit(4, 0), unit(4, 1)]), 0.0
    hidden = torch.zeros(4, 4, dtype=torch.bool)
    for i, j in known:
        hidden[i, j] = hidden[j, i] = True
    for i in range(8):
        rivals = [j for j in range(8) if j != i and not hidden[i % 4, j % 4]]
        scores = {j: float(views[i] @ views[j]) / 0.1 for j in rivals}
        total += math.log(sum(map(math.exp, scores.values()))) - scores[(i + 4) % 8]
    assert two_views(*views.chunk(2), 0.1, hidden).item() == pytest.approx(total / 8, rel=1e-5)


def test_drawn_images_are_positives_of_their_anchors_image():
    """Image 3 was drawn of the first anchor's caption, image 4 of the third's; image 1 matches the third's too."""
    one = step([[0, 3], [1, NONE], [2, 4]], [[0, NONE], [1, NONE], [2, NONE]], (3, 0), (4, 2), (1, 2))
    owner, z, total = one.anchors.tolist(), one.images.detach(), 0.0  # pairs 0 1, 2, 3 4
    for i in range(5):
        known = [j for j in range(5) if {owner[i], owner[j]} == {2, 3}]
        logits = {j: float(z[i] @ z[j]) / TEMPERATURE for j in range(5) if j != i and j not in known}
        positives = [j for j in logits if owner[j] == owner[i]]
        everything = math.log(sum(map(math.exp, logits.values())))
        total -= sum((logits[j] - everything) / len(positives) for j in positives)
    found = MultiPositive()
    assert found.terms(one)["loss_images"].item() == pytest.approx(total / 5, rel=1e-5)
    alone = multi_positive(unit(3).requires_grad_(), torch.arange(3), 0.1)
    assert alone.item() == 0


def two_views_of(features: torch.Tensor) -> TwoViews:
    model = nn.Module()
    model.config = SimpleNamespace(vision_config=SimpleNamespace(hidden_size=6))
    found = TwoViews(SimpleNamespace(model=model))
    found.augment, found.features = (lambda pixels: pixels), (lambda images, batch: features)
    return found


@pytest.mark.parametrize("name", ["batch", "grid", "triplet", "stablerep", "simclr", "hard-neg-only"])
def test_every_loss_of_the_study_masks_known_matches(name):
    torch.manual_seed(0)
    losses = {
        "batch": PairObjective("batch"),
        "grid": PairObjective("grid", 1.0),
        "triplet": Triplet(),
        "stablerep": MultiPositive(),
        "simclr": two_views_of(torch.randn(8, 6)),
        "hard-neg-only": HardNegatives(1.0),
    }
    found = []
    for known in ([], [(0, 3), (3, 0), (0, 4), (0, 7), (4, 0)]):
        one = step([[row, row + 4] for row in range(4)], [[row, row + 4] for row in range(4)], *known)
        one.batch["pixels"] = torch.zeros(8, 3, 2, 2)
        found.append(losses[name].terms(one))
    plain, masked = found
    assert all(masked[term] < plain[term] for term in plain)
