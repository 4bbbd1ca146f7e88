"""Images of one group are never each other's negatives: in grids, in the global batch, with records and without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_grids import cross_entropy, dot, make_pairs, make_records, many, unit

from repair_hf.training.grids import Grids
from repair_hf.training.objectives import LocalGrids, Vectors

RECORDS = [("c0", "i3"), ("i0", "c8"), ("c9", "i1"), ("i4", "c2")]


def grouped(groups: str):
    pairs = make_pairs()
    return replace(pairs, images=pairs.images.add_column("group", list(groups)))


def test_cells_of_one_group_are_known_in_a_grid():
    """c0 of i0 was confused with i3, which shows the same product; so does i4, of which c8 is a caption."""
    alone, together = (
        Grids(grouped(groups), make_records(*RECORDS), own_failures_share=0.5) for groups in ("abcdef", "abcaaf")
    )
    drawn, same = many(alone, 0), many(together, 0)
    assert all((drawn[name] == same[name]).all() for name in ("grid_images", "grid_texts", "sources"))
    off_diagonal = np.broadcast_to(~np.eye(3, dtype=bool), same["matches"].shape)
    assert not drawn["matches"][:, 0].any() and (same["matches"] == off_diagonal).all()


@pytest.mark.parametrize("negatives", ["grid", "grid+edits", "none"])
def test_the_global_batch_masks_what_is_of_one_group(negatives):
    """Anchors c0, c2, c4, c6 of images 0 to 3, of which the second and the fourth show one product."""
    records = None if negatives == "none" else make_records(*RECORDS)
    drawn = Grids(grouped("abcbef"), records, negatives=negatives).draw(np.zeros(4, int), np.array([0, 2, 4, 6]))
    known = {name: torch.from_numpy(drawn[name])[:, :1] for name in ("wordings", "answers")}  # the anchors'
    images, texts = unit(4, 0), unit(4, 1)
    at = {"anchor_images": torch.arange(4), "anchor_texts": torch.arange(4)}
    loss = LocalGrids()(Vectors(images, texts, torch.tensor(7.0)), at | known)["loss_global"].value
    total = 0.0
    for k in range(4):
        rivals = [other for other in range(4) if other != k and {other, k} != {1, 3}]
        own = dot(images[k], texts[k])
        total += cross_entropy(own, [dot(images[k], texts[other]) for other in rivals])
        total += cross_entropy(own, [dot(images[other], texts[k]) for other in rivals])
    assert loss.item() == pytest.approx(total / 8, rel=1e-5)


def test_a_training_on_groups_runs_and_differs(fit, pairs):
    named = pairs.images.add_column("group", ["x"] * 6 + ["y"] * 6)
    plain, _ = fit(None)
    masked, _ = fit(None, "groups", pairs=replace(pairs, images=named))
    assert any((plain[name] != masked[name]).any() for name in plain)
