"""Means, differences and intervals against slow references; and that no printed score is bent."""

import math

import numpy as np
import pytest

from repair_hf.study.results import BASE, Cell
from repair_hf.study.statistics import MEASURES, Line, lines_of, mean_of
from tests.study.made_rows import IMAGES, KEPT, plan, row, rows

SHARES = {"plain": {"R@1": 0.5, "contrast": 0.6, "kept": 0.4}, "laclip": {"R@1": 0.6, "contrast": 0.55, "kept": 0.3}}


def lines(seeds: int = 3) -> dict[str, Line]:
    def good(cell: Cell) -> dict[str, float]:
        """The recall of one method grows with the seed."""
        shares = dict(SHARES.get(cell.method, {}))
        if cell.method == "laclip":
            shares["R@1"] += (cell.seed - seeds // 2) * 0.05
        return shares

    found = rows(plan(methods=["laclip"], seeds=seeds), good)
    return lines_of(found.values(), "test")["tiny"]


def test_a_gain_is_the_mean_difference_of_both_metrics_and_the_score_the_mean_of_the_gains():
    gains = lines()["laclip"].gains(lines()["plain"])
    assert [round(100 * gains[name].mean) for name in MEASURES] == [10, -5, -10]
    assert gains["score"].mean == pytest.approx((0.1 - 0.05 - 0.1) / 3, abs=0.01)


@pytest.mark.parametrize("seeds", [1, 3])
def test_an_interval_is_that_of_images_and_seeds(seeds):
    """A slow reference: each image's residuals are summed, over all queries that are its own."""
    one, other = (lines(seeds)[name] for name in ("laclip", "plain"))
    images = {"i2t": np.arange(IMAGES), "t2i": np.arange(2 * IMAGES) // 2}
    total, means = np.zeros(IMAGES + KEPT), []
    for seed in range(seeds):
        mean = 0.0
        for way, of in images.items():
            difference = one.rows[seed].right[way] - other.rows[seed].right[way]
            mean += difference.mean() / 2
            for image, value in zip(of, difference, strict=True):
                total[image] += (value - difference.mean()) / len(difference) / 2 / seeds
        means.append(mean)
    n = len(total)
    half = 1.959964 * math.sqrt((total**2).sum() * n / (n - 1))
    if seeds == 3:
        half = math.hypot(half, 4.303 * np.std(means, ddof=1) / math.sqrt(3))
        assert np.std(means, ddof=1) > 0.02
    low, high = one.gains(other)["R@1"].bounds
    assert (low, high) == pytest.approx((np.mean(means) - half, np.mean(means) + half))


def test_differences_are_paired_by_seed_and_query():
    """Two methods that differ in one query of each seed: the interval of seeds is empty, that of images is narrow."""
    cells = [[Cell("tiny", name, "test", seed) for seed in range(3)] for name in ("a", "b")]
    base = row(Cell("tiny", BASE, "test"), {})
    first = [row(cell, {"R@1": 0.2 + 0.2 * cell.seed}) for cell in cells[0]]
    second = [row(cell, {"R@1": 0.2 + 0.2 * cell.seed}) for cell in cells[1]]
    for one in second:
        wrong = one["i2t_ranks"].index(3)
        one.values["i2t_ranks"][wrong] = 1
    gain = Line(base, second).gains(Line(base, first))["R@1"]
    assert gain.mean == pytest.approx(1 / IMAGES / 2) and np.ptp(gain.seeds) == pytest.approx(0)
    assert gain.bounds[1] - gain.bounds[0] < 0.05


def test_the_mean_of_equal_estimates_is_that_estimate():
    gain = lines()["laclip"].gains(lines()["plain"])["score"]
    assert mean_of([gain, gain]).bounds == pytest.approx(gain.bounds)


def test_unfinished_lines_are_left_out_and_plain_training_comes_first():
    found = rows(plan(methods=["laclip", "repair-batch"], seeds=2), lambda cell: {})
    del found[Cell("tiny", "laclip", "test", 1, 1e-4, 0.2)]
    names = list(lines_of(found.values(), "test")["tiny"])
    assert names[:2] == [BASE, "plain"] and "laclip" not in names and "repair-batch" in names
    assert {f"repair-batch, blend {blend}" for blend in ("0.8", "0.6")} <= set(names)
    for blend in (1.0, 0.8, 0.6):  # a second seed of plain training is still missing
        del found[Cell("tiny", "plain", "test", 1, 1e-4, 0.2, blend=blend)]
    one = lines_of(found.values(), "test")["tiny"]
    assert {len(line.rows) for line in one.values()} == {1} and "laclip" in one
    assert one["repair-batch"].gains(one["plain"])["R@1"].seeds.shape == (1,)
