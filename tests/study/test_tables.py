"""The tables' numbers against slow references, and what their intervals cover."""

import math
import statistics

import numpy as np
import pytest

from repair_hf.study.differences import BOTH, Z, differences, images_of
from repair_hf.study.plan import Plan
from repair_hf.study.results import BASE, SCORED, Cell
from repair_hf.study.tables import labels, tables_of
from tests.study.made_rows import CAPTIONS, IMAGES, Found, plan, row, settings_of

BASE_ROW = row(Cell("tiny", BASE, "test"), 0.25)


def rows(method: str, good: float, seeds: int = 3):
    return [row(Cell("tiny", method, "test", seed), good) for seed in range(seeds)]


def test_a_querys_values_are_hits_reciprocal_ranks_and_right_cases():
    one = BASE_ROW
    assert one.queries["i2t_R@1"].tolist() == [float(rank <= 1) for rank in one.ranks["i2t"]]
    assert one.queries["t2i_MRR"] == pytest.approx([1 / rank for rank in one.ranks["t2i"]])
    bits = one["near_i2t"]
    assert one.queries["i2t_truth"].tolist() == [float(bit in (1, 3)) for bit in bits]
    assert one.queries["i2t_edit"].tolist() == [float(bit in (2, 3)) for bit in bits]
    assert one.metrics["i2t_truth"] == pytest.approx(statistics.fmean(one.queries["i2t_truth"]))
    assert images_of("t2i_R@1", one).tolist() == [caption // 2 for caption in range(CAPTIONS)]
    assert images_of("i2t_R@1", one).tolist() == list(range(IMAGES))


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("metric", ["t2i_R@1", "i2t_truth"])
def test_an_interval_covers_other_images_and_other_seeds(metric, seeds):
    """By loops: the queries of an image move the mean together; a t-distribution covers seeds."""
    some, others = rows("repair", 0.75, seeds), rows("vanilla", 0.5, seeds)
    each = [one.queries[metric] - other.queries[metric] for one, other in zip(some, others, strict=True)]
    of_query, image = np.mean(each, axis=0), images_of(metric, BASE_ROW)
    moved = [sum(of_query[q] - of_query.mean() for q in range(len(image)) if image[q] == n) for n in range(IMAGES)]
    by_images = Z * math.sqrt(sum(x * x for x in moved) * IMAGES / (IMAGES - 1)) / len(image)
    by_seeds = 4.303 * statistics.stdev(map(np.mean, each)) / math.sqrt(seeds) if seeds > 1 else 0.0
    found = differences(some, others, BASE_ROW)[metric]
    assert found.mean == pytest.approx(of_query.mean())
    half = math.sqrt(by_images**2 + by_seeds**2)
    assert (found.low, found.high) == pytest.approx((found.mean - half, found.mean + half))


def test_the_score_is_the_mean_of_both_measures_and_its_interval_that_of_the_mean():
    some, others = rows("repair", 0.75), rows("vanilla", 0.5)
    found = differences(some, others, BASE_ROW)
    assert found[BOTH].mean == pytest.approx(statistics.fmean(found[name].mean for name in SCORED))
    widths = [found[name].high - found[name].low for name in SCORED]
    assert found[BOTH].high - found[BOTH].low < max(widths)  # measures of different queries err apart
    same = differences(some, some, BASE_ROW)
    assert {(each.mean, each.low, each.high) for each in same.values()} == {(0.0, 0.0, 0.0)}


def test_arms_are_named_by_what_differs():
    options = {"losses": ["batch", "both"], "grid_weights": [0.5, 2.0], "budgets": ["all", "samples=3"]}
    found = labels(plan(["repair", "simclr"], Found(lambda cell: 0.5), **options).arms())
    assert list(found) == [
        "vanilla", "repair, batch, all", "repair, batch, samples=3", "repair, both, weight 0.5, all",
        "repair, both, weight 0.5, samples=3", "repair, both, weight 2, all", "repair, both, weight 2, samples=3",
        "simclr",
    ]  # fmt: skip
    sets = settings_of(datasets={"one": {"paper": "flickr30k"}, "two": {}})
    plans = [Plan(each, [], Found(lambda cell: 0.5)) for each in sets]
    assert list(labels([arm for one in plans for arm in one.arms()])) == ["vanilla on one", "vanilla on two"]
    table = {each.name: each.table for each in tables_of(plans)}["retrieval"].set_index("method")
    assert table["paper: I2T R@1"].to_dict() == {
        "base on one": "–", "base on two": "–", "vanilla on one": "87.87", "vanilla on two": "–"
    }  # fmt: skip


def test_the_tables_have_a_row_of_each_arm_and_of_plain_training_of_each_length():
    one = plan(["laclip", "repair"], Found(lambda cell: 0.5, {"repair": 2.0}), seeds=2, paper="coco30k")
    found = {each.name: each for each in tables_of([one])}
    table = found["summary"].table.set_index("method")
    assert list(table.index) == ["base", "vanilla", "laclip", "repair", "vanilla, 0.4 epochs"]
    assert table.loc["repair", ["samples", "LLM calls", "images"]].tolist() == ["8", "40", "4"]
    assert table.loc["repair", "both, gain"].count("[") == 1 and table.loc["vanilla", "both, gain"] == "–"
    assert found["retrieval"].table.set_index("method").loc["repair", "paper: I2T R@1"] == "62.64"
    assert "too few for a conclusion" in found["summary"].note and "one seed" not in found["summary"].note
    steps = found["gains"].data.query("method == 'repair' and against == 'equal steps'")
    assert set(steps["metric"]) >= {*SCORED, BOTH} and "2x" in found["gains"].table.to_numpy()
    assert found["cost"].table.set_index("method").loc["repair", "samples trained on"] == "6"
    assert "left_out" not in found and "tuning" not in found


def test_what_is_not_trained_is_named():
    known = Found(lambda cell: 0.5)
    one = plan(["laclip", "repair"], lambda cell: None if cell.method == "repair" else known(cell), seeds=1)
    one.left_out["laclip"] = "no caption could be rewritten"
    found = {each.name: each for each in tables_of([one])}
    assert "`laclip on tiny`: no caption could be rewritten." in found["left_out"].note
    assert "1 cells or more, such as tiny--repair" in found["left_out"].note
    assert "repair" not in found["summary"].table["method"].tolist()


def test_a_share_of_the_data_costs_its_share():
    known = Found(lambda cell: 0.5)
    cell = Cell("tiny", "laclip", "test", 0, 1e-4, 0.2, "", "batch", 0.0, "samples=4")
    known.rows[cell] = row(cell, 0.5, share=0.5)
    found = {each.name: each for each in tables_of([plan(["laclip"], known, seeds=1, budgets=["samples=4"])])}
    cost = found["cost"].table.set_index("method").loc["laclip"]
    assert cost[["samples", "LLM calls", "images", "dollars"]].tolist() == ["4", "20", "2", "0.25"]


def test_the_rule_leaves_out_what_costs_r1_and_ties_what_cannot_be_told_apart():
    """`grid` is best on near misses and behind plain training in R@1 for certain; two others differ by a query."""
    near = {"batch": (6, 6, 1), "grid": (8, 8, 3), "both": (7, 6, 1)}  # right cases of I2T and T2I, and all ranks

    def find(cell: Cell):
        *counts, rank = near.get(cell.loss, (3, 3, 1))
        bits = [[1] * count + [0] * (8 - count) for count in counts]
        ranks = {"i2t_ranks": [rank] * IMAGES, "t2i_ranks": [rank] * CAPTIONS}
        return row(cell, **ranks, near_i2t=bits[0], near_t2i=bits[1])

    one = plan(["repair"], find, losses=list(near), seeds=2)
    (found,) = [each.table for each in tables_of([one]) if each.name == "default"]
    verdicts = dict(zip(found["repair"], found["verdict"], strict=True))
    assert verdicts == {
        "repair, both, weight 1": "best",
        "repair, batch": "tied",
        "repair, grid, weight 1": "left out",
    }
    assert found["repair"].iloc[0] == "repair, both, weight 1" and found["score"].iloc[0].startswith("+21.9 [")
