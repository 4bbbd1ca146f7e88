"""Rows of mined false positives, what counts as positive, the summary, and the filters of failures."""

import numpy as np
import pytest
from datasets import Dataset

from repair_hf.mining import false_positives
from repair_hf.mining.false_positives import (
    draw_queries,
    find_false_positives,
    mine_false_positives,
    summarize,
)
from repair_hf.mining.filtering import FilterOptions, filter_failures
from repair_hf.mining.ranking import rank_both_ways
from repair_hf.pairs.truth import Truth, wordings
from repair_hf.runtime.options import UserError
from tests.mining.embeddings import planted


@pytest.fixture
def embeddings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Twelve images with thirty captions."""
    return planted(np.random.default_rng(0), 1.0, n_images=12, n_texts=30, size=16)


def test_rows_of_both_directions(embeddings):
    """Rows are those of the ranking, which has its own tests; first `t2i`, then `i2t`, by query, then by rank."""
    images, texts, caption_image = embeddings
    failures = mine_false_positives(images, texts, caption_image, d_i2t=3, d_t2i=2)
    assert failures.features == false_positives.FEATURES
    i2t, t2i = rank_both_ways(images, texts, Truth.annotated(caption_image, 12), fps_of_image=3, fps_of_caption=2)
    expected = [
        (direction, q, found.gt[q], found.fp[q, k], found.fp_score[q, k], found.fp_rank[q, k], found.gt_score[q])
        for direction, found in (("t2i", t2i), ("i2t", i2t))
        for q, k in np.ndindex(found.fp.shape)
    ]
    assert [tuple(row.values())[:7] for row in failures] == expected
    assert failures["gt_rank"][:] == [*np.repeat(t2i.gt_rank, 2), *np.repeat(i2t.gt_rank, 3)]


def test_equal_captions_are_no_false_positives_of_each_other():
    """Captions 0 and 2 have the same text, so images 0 and 1 are positives of both."""
    images = np.eye(3, dtype=np.float32)
    texts = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]], np.float32)
    owner = np.array([0, 1, 1, 2])
    captions = ["A red circle.", "a square", " a  RED circle", "a triangle"]

    def fps(**options):
        rows = mine_false_positives(images, texts, owner, k_mine=1, d_i2t=1, d_t2i=1, **options)
        return {(row["direction"], row["q"]): (row["fp"], row["gt_rank"]) for row in rows}

    annotated, equal = fps(), fps(same_text_is_positive=captions)
    assert annotated["t2i", 2] == (0, 3)  # its own image 1 ties with image 2
    assert equal["t2i", 2] == (2, 1)
    assert annotated["i2t", 0] == (2, 2)
    assert equal["i2t", 0][0] != 2
    assert Truth.annotated(owner, 3, wording=wordings(captions)).beyond_annotation == 2
    few = mine_false_positives(images, texts, owner, d_i2t=5, d_t2i=5)  # there are fewer wrong answers
    assert few["q"][:] == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k_mine": 4}, "`d_i2t` must lie between 0 and `k_mine`"),
        ({"d_t2i": -1}, "`d_t2i` must lie between 0 and `k_mine`"),
        ({"same_text_is_positive": ["a", "b"]}, "a text for each of the 30 captions, got 2"),
    ],
)
def test_refuses(embeddings, options, message):
    with pytest.raises(UserError, match=message):
        mine_false_positives(*embeddings, **options)


@pytest.mark.parametrize(("d_i2t", "d_t2i"), [(3, 1), (0, 2), (2, 0)])
def test_drawn_queries_have_the_rows_that_they_have_among_all(embeddings, d_i2t, d_t2i):
    images, texts, own = embeddings
    positives = Truth.annotated(own, 12)
    sizes = {"d_i2t": d_i2t, "d_t2i": d_t2i}
    everything, _ = find_false_positives(images, texts, positives, k_mine=100, **sizes)
    for seed in range(5):
        queries = draw_queries(positives, own, 4, **sizes, seed=seed)
        some, _ = find_false_positives(images, texts, positives, k_mine=100, **sizes, queries=queries)
        drawn = {(direction, q) for direction, rows in queries.items() for q in rows.tolist()}
        assert some.to_list() == [row for row in everything if (row["direction"], row["q"]) in drawn]
        assert [len(queries["i2t"]), len(queries["t2i"])] == [4 * (d_i2t > 0), 4 * (d_t2i > 0)]
        assert not d_i2t or set(own[queries["t2i"]]) <= set(queries["i2t"])  # captions of the same images
    assert len(draw_queries(positives, own, 1000, **sizes)["t2i"]) == 30 * (d_t2i > 0)


@pytest.mark.parametrize(
    ("own", "words", "looks", "drawn"),
    [
        ([0, 1, 2], "sso", [0, 0, 0], {"i2t": 0, "t2i": 0}),  # images of one look: all captions answer all of them
        ([0, 1, 2], "sss", None, {"i2t": 0, "t2i": 0}),
        ([0, 0, 1], "aab", None, {"i2t": 1, "t2i": 1}),
    ],
)
def test_a_query_without_a_wrong_answer_is_not_drawn(own, words, looks, drawn):
    own = np.array(own)
    positives = Truth.annotated(own, own.max() + 1, wording=wordings(words), image_class=looks and np.array(looks))
    queries = draw_queries(positives, own, 1, d_i2t=1, d_t2i=1, seed=1)
    assert {direction: len(rows) for direction, rows in queries.items()} == drawn


def test_table_counts_queries_not_rows():
    """Captions 0 and 1 are retrieved correctly; caption 2 scores 0.8 with image 0 and 0.6 with its own."""
    images = np.eye(3, dtype=np.float32)
    texts = np.array([[1, 0, 0], [0, 1, 0], [0.8, 0, 0.6]], np.float32)
    table = summarize(mine_false_positives(images, texts, np.arange(3), d_i2t=2, d_t2i=2))
    gaps = {"gap_25": pytest.approx(-1.0), "gap_50": pytest.approx(-1.0), "gap_75": pytest.approx(-0.4)}
    assert table["t2i"] == {"queries": 3, "false_positives": 6, "failed": 1} | gaps
    assert (table["i2t"]["queries"], table["i2t"]["false_positives"], table["i2t"]["failed"]) == (3, 6, 0)
    assert summarize(mine_false_positives(images, texts, np.arange(3), d_i2t=0)).keys() == {"t2i"}


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
