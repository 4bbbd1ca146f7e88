"""Filters of mined failures, against the sentences that describe them."""

import numpy as np
import pytest
from datasets import Dataset

from repair_hf.mining.filtering import FilterOptions, filter_failures

RNG = np.random.default_rng(0)
ROWS = Dataset.from_dict(
    {
        "direction": ["t2i", "i2t"] * 50,
        "fp_score": RNG.integers(-3, 8, 100) / 8,  # eighths, so that scores lie at the bounds
        "gt_score": RNG.integers(-3, 8, 100) / 8,
        "fp_rank": RNG.integers(1, 9, 100),
        "gt_rank": RNG.integers(1, 9, 100),
    }
)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"failures_only": True}, lambda row: row["fp_rank"] < row["gt_rank"]),
        ({"max_score": 0.5}, lambda row: row["fp_score"] <= 0.5),
        ({"relative_margin": 0.5}, lambda row: row["fp_score"] <= row["gt_score"] - 0.5 * abs(row["gt_score"])),
        ({}, lambda row: True),
    ],
)
def test_filter(options, wanted):
    kept, left_out = filter_failures(ROWS, FilterOptions(**options))
    assert kept.to_list() == [row for row in ROWS.to_list() if wanted(row)]
    assert left_out == ({name: 100 - len(kept) for name in options})


def test_filters_count_one_after_the_other_and_a_limit_comes_last():
    kept, left_out = filter_failures(ROWS, FilterOptions(failures_only=True, max_score=0.5, limit=4))
    assert sorted(kept["direction"]) == ["i2t"] * 4 + ["t2i"] * 4 and sum(left_out.values()) == 92
    assert all(row["fp_rank"] < row["gt_rank"] and row["fp_score"] <= 0.5 for row in kept.to_list())
    more, _ = filter_failures(ROWS, FilterOptions(failures_only=True, max_score=0.5, limit=6))
    assert [row for row in more.to_list() if row in kept.to_list()] == kept.to_list()
