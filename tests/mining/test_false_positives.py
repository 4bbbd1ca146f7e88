"""Rows of mined false positives, what counts as positive, and the summary."""

import numpy as np
import pytest

from repair_hf.mining import false_positives
from repair_hf.mining.false_positives import annotated_positives, mine_false_positives, sample_queries, summarize
from repair_hf.runtime.options import UserError
from tests.mining.embeddings import planted


@pytest.fixture
def embeddings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Twelve images with thirty captions."""
    return planted(np.random.default_rng(0), 1.0, n_images=12, n_texts=30, size=16)


def test_rows_of_both_directions(embeddings):
    images, texts, caption_image = embeddings
    failures = mine_false_positives(images, texts, caption_image, d_i2t=3, d_t2i=2)
    assert failures.features == false_positives.FEATURES
    assert failures["direction"][:] == ["t2i"] * 60 + ["i2t"] * 36
    scores = images @ texts.T
    for row in failures:
        if row["direction"] == "t2i":
            column, gts = scores[:, row["q"]], {caption_image[row["q"]]}
        else:
            column, gts = scores[row["q"]], set(np.flatnonzero(caption_image == row["q"]).tolist())
        assert row["fp"] not in gts
        assert row["gt"] == max(gts, key=lambda place: column[place])
        assert row["fp_score"] == pytest.approx(column[row["fp"]], abs=1e-6)
        assert row["gt_score"] == pytest.approx(column[row["gt"]], abs=1e-6)
        assert row["fp_rank"] == 1 + (column > column[row["fp"]]).sum()
        assert row["gt_rank"] == 1 + (column > column[row["gt"]]).sum()
    ranks = [row["fp_rank"] for row in failures if row["direction"] == "i2t" and row["q"] == 0]
    assert ranks == sorted(ranks)


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
    assert annotated_positives(owner, 3, captions).beyond_annotation == 2


def test_fewer_candidates_than_asked_for():
    images, texts = np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32)
    failures = mine_false_positives(images, texts, np.arange(2), d_i2t=5, d_t2i=5)
    assert failures["direction"][:] == ["t2i", "t2i", "i2t", "i2t"]
    assert failures["q"][:] == [0, 1, 0, 1] and failures["fp"][:] == [1, 0, 1, 0]


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


def test_sample_keeps_whole_queries_in_order(embeddings):
    failures = mine_false_positives(*embeddings, d_i2t=3)
    some = sample_queries(failures, embeddings[2], 4, seed=1)
    rows = list(zip(some["direction"], some["q"], strict=True))
    assert len({row for row in rows if row[0] == "t2i"}) == len({row for row in rows if row[0] == "i2t"}) == 4
    assert rows.count(rows[-1]) == 3
    asked = {direction: {q for way, q in rows if way == direction} for direction in ("i2t", "t2i")}
    assert {int(embeddings[2][caption]) for caption in asked["t2i"]} <= asked["i2t"]  # captions of the same images
    assert rows == sorted(rows, key=lambda row: (row[0] == "i2t", row[1]))
    assert sample_queries(failures, embeddings[2], 4, seed=1).to_list() == some.to_list()
    assert sample_queries(failures, embeddings[2], 4, seed=2).to_list() != some.to_list()
    assert len(sample_queries(failures, embeddings[2], 1000)) == len(failures)


def test_table_counts_queries_not_rows():
    """Captions 0 and 1 are retrieved correctly; caption 2 scores 0.8 with image 0 and 0.6 with its own."""
    images = np.eye(3, dtype=np.float32)
    texts = np.array([[1, 0, 0], [0, 1, 0], [0.8, 0, 0.6]], np.float32)
    table = summarize(mine_false_positives(images, texts, np.arange(3), d_i2t=2))
    gaps = {"gap_25": pytest.approx(-1.0), "gap_50": pytest.approx(-1.0), "gap_75": pytest.approx(-0.4)}
    assert table["t2i"] == {"queries": 3, "false_positives": 3, "failed": 1} | gaps
    assert (table["i2t"]["queries"], table["i2t"]["false_positives"], table["i2t"]["failed"]) == (3, 6, 0)
    assert summarize(mine_false_positives(images, texts, np.arange(3), d_i2t=0)).keys() == {"t2i"}
