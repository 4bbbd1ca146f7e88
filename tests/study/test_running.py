"""Which cells there are and what they are compared with; their names."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from repair_hf.baselines import load_methods
from repair_hf.study.cells import Cell, Measured
from repair_hf.study.running import Study, compute_ratio
from repair_hf.study.setting import Knobs
from repair_hf.study.tuning import Grid

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


class MadeUp(Study):
    """A study whose trainings take no time: the longer, the lower the best learning rate; SimCLR encodes three times as many images."""

    def _measure(self, cell, method, *, keep_weights=False):
        best = cell.knobs is not None and cell.knobs.learning_rate == (3e-4 if cell.knobs.epochs < 3 else 1e-4)
        metrics = {"i2t_R@1": float(best), "t2i_R@1": float(best)}
        training = {"images_per_step": 384.0 if cell.method == "simclr" else 128.0, "texts_per_step": 128.0}
        return Measured(cell, Path("/nowhere"), metrics, training)


@pytest.mark.parametrize("tune", [True, False])
def test_plain_training_of_each_length_has_a_learning_rate_of_its_own_choice(tune, tmp_path):
    setting = SimpleNamespace(
        output=tmp_path,
        split="test",
        validation_split="validation",
        alone=lambda name: nullcontext(),
        keep_models=False,
    )
    study = MadeUp(setting, load_methods(), ["simclr"], Grid([3e-4, 1e-4], [1.0], [0.5]), tune=tune)
    [results] = study.run(1)
    row, for_long = results.rows["simclr"], 1e-4 if tune else 3e-4
    assert [cell.cell.knobs for cell in row.cells + row.same_steps] == [Knobs(3e-4, 1.0)] * 2
    assert [cell.cell.knobs for cell in row.same_compute + results.longer] == [Knobs(for_long, 3.0)] * 2
    assert results.rows["vanilla"].cells == results.rows["vanilla"].same_steps
