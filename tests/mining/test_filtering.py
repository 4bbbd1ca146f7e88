"""Filters of mined failures, against the sentences that describe them."""

import numpy as np
import pytest
from datasets import Dataset

from repair_hf.mining.filtering import FilterOptions, filter_failures

RNG = np.random.default_rng(0)
ROWS = Dataset.from_dict(
    {
        "direction": ["t2i", "i2t"] * 50,
        "fp_score": RNG.uniform(-0.3, 0.9, 100),
        "gt_score": RNG.uniform(-0.3, 0.9, 100),
        "fp_rank": RNG.integers(1, 9, 100),
        "gt_rank": RNG.integers(1, 9, 100),
    }
)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"failures_only": True}, lambda row: row["fp_rank"] < row["gt_rank"]),
        ({"max_score": 0.5}, lambda row: row["fp_score"] <= 0.5),
        ({"relative_margin": 0.2}, lambda row: row["fp_score"] <= 0.8 * row["gt_score"]),
        ({}, lambda row: True),
    ],
)
def test_filter(options, wanted):
    kept, left_out = filter_failures(ROWS, FilterOptions(**options))
    assert kept.to_list() == [row for row in ROWS.to_list() if wanted(row)]
    assert left_out == ({name: 100 - len(kept) for name in options})


@pytest.mark.parametrize("margin", [0.0, 0.5, 0.75])
def test_relative_margin_keeps_what_sentence_transformers_keeps(margin):
    """Its `mine_hard_negatives`, for a query with one positive: too near if score > positive * (1 - margin)."""
    left_out = 0
    for row in (rows := ROWS.add_item(ROWS[0] | {"fp_score": 0.25, "gt_score": 0.25 / (1 - margin)})).to_list():
        left_out += row["fp_score"] > min([row["gt_score"]]) * (1 - margin)
    kept, counts = filter_failures(rows, FilterOptions(relative_margin=margin))
    assert counts == {"relative_margin": left_out} and kept[-1]["fp_score"] == 0.25  # at the bound it stays


def test_filters_count_one_after_the_other_and_a_limit_comes_last():
    kept, left_out = filter_failures(ROWS, FilterOptions(failures_only=True, max_score=0.5, limit=4))
    assert sorted(kept["direction"]) == ["i2t"] * 4 + ["t2i"] * 4 and sum(left_out.values()) == 92
    assert all(row["fp_rank"] < row["gt_rank"] and row["fp_score"] <= 0.5 for row in kept.to_list())
    more, _ = filter_failures(ROWS, FilterOptions(failures_only=True, max_score=0.5, limit=6))
    assert [row for row in more.to_list() if row in kept.to_list()] == kept.to_list()
