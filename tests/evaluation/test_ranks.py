"""`ranks.parquet` and its comparison, against loops over the whole matrix; intervals are those of scipy."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from benchmark_files import captioned

from repair_hf.evaluation import intervals
from repair_hf.evaluation.comparison import (
    CHANGES,
    count_changes,
    differences,
    summary,
    too_few,
    verdict,
)
from repair_hf.evaluation.intervals import Draws, interval
from repair_hf.evaluation.ranks import load_ranks, rank_table, ranks_by_direction, save_table
from repair_hf.evaluation.retrieval import (
    evaluate_retrieval,
    random_metrics,
    rank_queries,
    resample_retrieval,
    retrieval_metrics,
)
from repair_hf.runtime.options import UserError

# Captions of each image: one each; seven for some; a single image; a single image with a single caption.
SHAPES = [[1] * 8, [7, 1, 2, 7, 1, 3], [5], [1]]


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def pairs(request, tmp_path_factory):
    captions = [[f"caption {place} {k}" for k in range(count)] for place, count in enumerate(request.param)]
    return captioned(tmp_path_factory.mktemp("pairs"), captions)


def vectors(pairs, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors in which many, or all, scores are exactly equal."""
    rng, shapes = np.random.default_rng(5), [(len(pairs.images), 4), (len(pairs.captions), 4)]
    if kind == "same":
        return tuple(np.full(shape, 0.5, np.float32) for shape in shapes)
    images, texts = (rng.choice([-0.5, 0.5], shape).astype(np.float32) for shape in shapes)
    if kind == "doubles":  # each picture stands twice, and captions are copies of one another
        images[1::2] = images[: len(images) // 2 * 2 : 2]
        texts[1::2] = texts[: len(texts) // 2 * 2 : 2]
    return images, texts


def slow_ranks(images: np.ndarray, texts: np.ndarray, owner: np.ndarray) -> list[tuple]:
    """Query by query: direction, best right score and rank, best wrong score (None without any)."""
    found, is_pair = [], owner == np.arange(len(images))[:, None]
    for way, queries, candidates, right in (("t2i", texts, images, is_pair.T), ("i2t", images, texts, is_pair)):
        for query, good in zip(queries, right, strict=True):
            scores = [float(query @ candidate) for candidate in candidates]
            best = max(score for place, score in enumerate(scores) if good[place])
            wrong = [score for place, score in enumerate(scores) if not good[place]]
            found.append((way, best, 1 + sum(score >= best for score in wrong), max(wrong, default=None)))
    return found


def table_of(pairs, kind: str, model: str = "m"):
    return rank_table(rank_queries(*vectors(pairs, kind), pairs.caption_image, fps=1), pairs, model)


@pytest.mark.parametrize("kind", ["ties", "doubles", "same"])
def test_each_row_is_what_the_whole_matrix_says(pairs, kind, tmp_path):
    save_table(table_of(pairs, kind), tmp_path / "ranks.parquet")
    rows, expected = load_ranks(tmp_path).to_pylist(), slow_ranks(*vectors(pairs, kind), pairs.caption_image)
    assert [row["q_id"] for row in rows] == [*pairs.captions["caption_id"], *pairs.images["image_id"]]
    for row, (direction, score, rank, wrong) in zip(rows, expected, strict=True):
        assert (row["direction"], row["gt_score"], row["gt_rank"], row["fp_score"]) == (direction, score, rank, wrong)
        image_of = {caption: caption.split("#")[0] for caption in pairs.captions["caption_id"]}
        own, answer, other = (row[name] for name in ("q_id", "gt_id", "fp_id"))
        assert answer == image_of[own] if direction == "t2i" else image_of[answer] == own
        assert other is None if wrong is None else (image_of.get(other, other) != image_of.get(own, own))


@pytest.mark.parametrize("kind", ["ties", "doubles", "same"])
def test_metrics_and_intervals_are_those_of_the_slow_ranks(pairs, kind):
    slow, ranks = slow_ranks(*vectors(pairs, kind), pairs.caption_image), ranks_by_direction(table_of(pairs, kind))
    found = retrieval_metrics(ranks)
    samples = resample_retrieval(ranks, pairs.caption_image, Draws(len(pairs.images), 25, seed=2))
    drawn = np.random.default_rng(2).integers(0, len(pairs.images), (25, len(pairs.images)))
    for way in ("i2t", "t2i"):
        own = np.array([rank for direction, _, rank, _ in slow if direction == way])
        image = np.arange(len(own)) if way == "i2t" else pairs.caption_image
        queries = [np.concatenate([np.flatnonzero(image == one) for one in images]) for images in drawn]
        for name, of in {
            "R@1": lambda ranks: np.mean(ranks <= 1),
            "R@10": lambda ranks: np.mean(ranks <= 10),
            "MRR": lambda ranks: np.mean(1 / ranks),
            "median_rank": np.median,
        }.items():
            assert found[f"{way}_{name}"] == pytest.approx(of(own))
            expected = np.array([of(own[some]) for some in queries])
            np.testing.assert_allclose(samples[f"{way}_{name}"], expected, rtol=1e-12)
            assert interval(samples[f"{way}_{name}"]) == pytest.approx(tuple(np.quantile(expected, [0.025, 0.975])))


def test_a_random_retriever_scores_the_mean_over_all_orders():
    caption_image = np.array([0, 0, 1, 2, 2, 2])
    positives = {"i2t": [np.flatnonzero(caption_image == image) for image in range(3)], "t2i": caption_image[:, None]}
    expected = random_metrics(caption_image, 3, ks=(1, 2))
    for direction, n_candidates in (("i2t", 6), ("t2i", 3)):
        ranks = np.array(
            [
                [1 + min(order.index(row) for row in rows) for rows in positives[direction]]
                for order in itertools.permutations(range(n_candidates))
            ]
        )
        for name, value in {"R@1": ranks <= 1, "R@2": ranks <= 2, "MRR": 1 / ranks}.items():
            assert expected[f"{direction}_{name}"] == pytest.approx(value.mean()), name


def test_every_change_is_counted_by_direction():
    before, now = [1, 1, 5, 5, 5, 5, 2], [1, 2, 1, 3, 9, 5, 1]
    names = ["unchanged", "broken", "repaired", "improved", "worsened", "unchanged", "repaired"]
    ways = ["t2i", "t2i", "t2i", "i2t", "i2t", "i2t", "i2t"]
    old, new = (pa.table({"direction": ways, "q_id": list("abcdefg"), "gt_rank": ranks}) for ranks in (before, now))
    expected = list(zip(ways, names, strict=True))
    assert count_changes(old, new) == {
        way: {kind: expected.count((way, kind)) for kind in CHANGES} for way in ("i2t", "t2i")
    }


def test_a_paired_difference_is_that_of_a_slow_bootstrap(pairs):
    """A resample draws images, each with its captions; both models are measured on the same ones."""
    owner, n = pairs.caption_image, len(pairs.images)
    before, now = (1 / ranks_by_direction(table_of(pairs, kind))["t2i"] for kind in ("ties", "doubles"))
    old, new = ({"t2i_MRR": Draws(n, 40, seed=3).means(values, owner)} for values in (before, now))
    found = differences({"t2i_MRR": before.mean()}, {"t2i_MRR": now.mean()}, old, new)["t2i_MRR"]
    gains = []
    for images in np.random.default_rng(3).integers(0, n, (40, n)):
        drawn = [caption for image in images for caption in range(len(owner)) if owner[caption] == image]
        gains.append(sum(now[k] - before[k] for k in drawn) / len(drawn))
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.quantile(gains, [0.025, 0.975])))
    assert found["difference"] == pytest.approx(now.mean() - before.mean())
    assert differences({"x": 0.2}, {"y": 1.0}, {"x": np.zeros(9)}, {"y": np.zeros(9)}) == {}  # of one model alone


RISE, FALL, OPEN = ({"low": low, "high": high} for low, high in ((0.01, 0.1), (-0.1, -0.01), (-0.1, 0.1)))


@pytest.mark.parametrize(
    ("gains", "n_images", "expected"),
    [
        ([RISE, RISE], 200, "yes"),
        ([RISE, OPEN], 200, "yes"),
        ([RISE, FALL], 200, "undecided"),
        ([OPEN, OPEN], 5000, "undecided"),
        ([FALL, OPEN], 200, "no"),
        ([RISE, RISE], 199, "undecided"),
    ],
)
def test_a_verdict_takes_enough_images_and_an_interval_without_0(gains, n_images, expected):
    assert verdict(gains, n_images) == expected
    assert bool(too_few(n_images)) == (n_images < 200)


def test_ranks_of_other_pairs_are_not_compared(pairs):
    table = table_of(pairs, "ties")
    with pytest.raises(UserError, match="The ranks of `m` and `m` are of different queries"):
        count_changes(table, table.slice(1))


def test_a_folder_without_ranks_is_named(tmp_path):
    with pytest.raises(UserError, match="holds no ranks.parquet; give the folder that `repair-hf evaluate` wrote"):
        load_ranks(tmp_path)


def test_one_of_several_captions_is_enough():
    """Caption 1 belongs to image 0 and looks like image 1, which ties with it: that counts against image 1."""
    texts = np.array([[1, 0], [0, 1], [0, 1], [0, 1]], np.float32)
    metrics = evaluate_retrieval(np.eye(2, dtype=np.float32), texts, np.array([0, 0, 1, 1]), ks=(1,))
    assert (metrics["i2t_R@1"], metrics["t2i_R@1"]) == (0.5, 0.75)
    names = [f"{way}_{name}" for way in ("i2t", "t2i") for name in ("R@1", "MRR", "median_rank")]
    assert list(metrics) == [*names, "n_images", "n_texts"] and (metrics["n_images"], metrics["n_texts"]) == (2, 4)


@pytest.mark.parametrize("ks", [(), (0, 1)])
def test_refuses_ks_below_one(ks):
    with pytest.raises(UserError, match="numbers from 1"):
        evaluate_retrieval(np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32), np.arange(2), ks=ks)


def test_averages_have_the_interval_of_their_own_samples():
    """Two metrics that move against each other: their mean is certain, though neither of them is."""
    noise = np.linspace(-0.2, 0.2, 101)
    samples = {"i2t_R@1": 0.5 + noise, "t2i_R@1": 0.5 - noise, "web_i2t_R@1": noise, "web_t2i_R@1": noise}
    values = dict.fromkeys(samples, 0.5) | {"contrast_caption": 0.8}
    none = dict.fromkeys(samples, np.zeros(101))
    found = differences(*map(summary, (values, values, none, samples)))
    assert set(found) == {"mean_R@1", "kept_R@1"}  # the other question of the contrast set is missing
    assert found["mean_R@1"]["low"] == pytest.approx(0.5) == found["mean_R@1"]["high"]
    assert found["kept_R@1"]["low"] == pytest.approx(-0.19) and found["kept_R@1"]["high"] == pytest.approx(0.19)


@pytest.fixture(params=[2**20, 7])
def block(request, monkeypatch) -> None:
    """Resamples at once: all, or one, and the last block not full."""
    monkeypatch.setattr(intervals, "CELLS", request.param)


def test_equals_scipy(block):
    from scipy.stats import bootstrap

    rng = np.random.default_rng(0)
    hits = (rng.random(60) < 0.3).astype(float)
    draws = Draws(len(hits), resamples=500, seed=7)
    found = draws.means(hits, np.arange(len(hits)))
    expected = bootstrap((hits,), np.mean, n_resamples=500, method="percentile", rng=np.random.default_rng(7))
    np.testing.assert_allclose(found, expected.bootstrap_distribution, rtol=1e-12)
    assert interval(found) == pytest.approx(tuple(expected.confidence_interval), rel=1e-12)


def test_an_image_brings_its_captions(block):
    rng = np.random.default_rng(2)
    image = rng.permutation(np.repeat(np.arange(9), rng.integers(1, 8, 9)))  # one to seven captions each
    values = np.stack([rng.random(len(image)), rng.random(len(image))], 1)  # (Q, 2)
    values[rng.random(len(image)) < 0.4, 1] = np.nan  # no part in the second mean
    ranks = rng.integers(1, 6, len(image))
    draws = Draws(9, resamples=50, seed=4)
    means, medians = draws.means(values, image), draws.medians(ranks, image)
    assert means.shape == (50, 2)
    drawn = np.random.default_rng(4).integers(0, 9, (50, 9))  # the images of each resample, drawn in one go
    for images, mean, median in zip(drawn, means, medians, strict=True):
        queries = np.concatenate([np.flatnonzero(image == one) for one in images])
        np.testing.assert_allclose(mean, np.nanmean(values[queries], 0), rtol=1e-12)
        assert median == np.median(ranks[queries])


def test_a_resample_without_any_query_of_a_mean_is_left_out():
    means = Draws(3, resamples=200).means(np.array([1.0, np.nan, np.nan]), np.arange(3))
    assert np.isnan(means).any()
    assert interval(means) == (1.0, 1.0)
    medians = Draws(3, resamples=200).medians(np.array([4]), np.array([0]))
    assert np.isnan(medians).sum() == np.isnan(means).sum()
    assert interval(medians) == (4.0, 4.0)


@pytest.mark.parametrize("name", ["n_images", "resamples"])
def test_nothing_cannot_be_drawn(name):
    with pytest.raises(UserError, match=f"`{name}` must be greater than or equal to 1, got 0"):
        Draws(**{"n_images": 5, "resamples": 5} | {name: 0})
