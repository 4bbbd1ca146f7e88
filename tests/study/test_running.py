"""Which cells there are and what they are compared with; their names."""

from __future__ import annotations

import pytest

from repair_hf.study.cells import Cell
from repair_hf.study.running import compute_ratio
from repair_hf.study.setting import Knobs

PLAIN = {"images_per_step": 128.0, "texts_per_step": 128.0}


@pytest.mark.parametrize(
    "images, texts, ratio",
    [
        (128, 128, 1.0),  # laclip: other items, as many
        (128, 255, 2.0),  # negclip
        (128.4, 128, 1.0),  # a hundredth is forgiven
        (200, 128, 2.0),  # 1.56
        (384, 128, 3.0),  # simclr
        (100, 120, 1.0),  # neighbours encode fewer
    ],
)
def test_equal_compute_is_the_larger_of_both_rounded_up_to_halves(images, texts, ratio):
    assert compute_ratio({"images_per_step": images, "texts_per_step": texts}, PLAIN) == ratio


def test_each_cell_has_a_folder_of_its_own():
    knobs = [Knobs(lr, epochs, weight) for lr in (1e-4, 3e-4) for epochs in (1, 1.5) for weight in (0, 0.5, 1)]
    cells = {
        Cell("repair", split, seed, each, share)
        for split in ("test", "validation")
        for seed in (0, 1)
        for each in knobs
        for share in (0.2, 1.0)
    } | {Cell("base", "test")}
    assert len({cell.name for cell in cells}) == len(cells)
    assert all("/" not in cell.name for cell in cells)
