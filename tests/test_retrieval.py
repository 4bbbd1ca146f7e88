"""Ranks, false positives and their order against a triple loop over the full ranking."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from repair_hf.options import UserError
from repair_hf.retrieval import Positives, check_embeddings, rank_both_ways


def full_ranking(query: np.ndarray, candidates: np.ndarray, positives: set[int]) -> list[tuple[float, bool, int]]:
    """Every candidate as (score, is positive, index), best first; of equal scores the positive stands behind."""
    scores = [np.float32(sum(float(a) * float(b) for a, b in zip(query, row, strict=True))) for row in candidates]
    rows = [(score, place in positives, place) for place, score in enumerate(scores)]
    return sorted(rows, key=lambda row: (-row[0], row[1], row[2]))


def expected(queries, candidates, positives_of, k):
    """gt, gt_score, gt_rank, fp, fp_score, fp_rank as `Ranking` has them."""
    found = []
    for query, positives in zip(queries, positives_of, strict=True):
        ranking = full_ranking(query, candidates, positives)
        gt = next(rank for rank, row in enumerate(ranking, 1) if row[1])
        fps = [rank for rank, row in enumerate(ranking, 1) if not row[1]][:k]
        found.append(
            (ranking[gt - 1][2], ranking[gt - 1][0], gt, [(ranking[r - 1][2], ranking[r - 1][0], r) for r in fps])
        )
    return found


def check(ranking, queries, candidates, positives_of, k):
    for place, (gt, score, rank, fps) in enumerate(expected(queries, candidates, positives_of, k)):
        assert (ranking.gt[place], ranking.gt_score[place], ranking.gt_rank[place]) == (gt, score, rank)
        got = list(zip(ranking.fp[place], ranking.fp_score[place], ranking.fp_rank[place], strict=True))
        assert got[: len(fps)] == fps
        assert all(fp == -1 for fp, _, _ in got[len(fps) :])


def quantised(rng: np.random.Generator, count: int, size: int = 8) -> np.ndarray:
    """Unit vectors with four entries of +-1/2: their cosines are multiples of 1/4, so ties abound and sums are exact."""
    vectors = np.zeros((count, size), np.float32)
    for row in vectors:
        row[rng.permutation(size)[:4]] = rng.choice([-0.5, 0.5], 4)
    return vectors


def random_unit(rng: np.random.Generator, count: int, size: int = 8) -> np.ndarray:
    vectors = rng.normal(size=(count, size)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("make", [quantised, random_unit])
@pytest.mark.parametrize(("n_images", "n_texts", "block"), [(11, 37, 4), (13, 13, 5), (7, 40, 64), (3, 9, 1)])
@pytest.mark.parametrize("same_text", [False, True])
def test_equals_a_loop_over_full_rankings(make, n_images, n_texts, block, same_text):
    rng = np.random.default_rng(n_images * n_texts)
    images, texts = make(rng, n_images), make(rng, n_texts)
    caption_image = np.concatenate([np.arange(n_images), rng.integers(0, n_images, n_texts - n_images)])
    rng.shuffle(caption_image)
    words = rng.choice(list("abcdefghijklmnop"), n_texts) if same_text else [str(place) for place in range(n_texts)]
    own_words = [{words[c] for c in np.flatnonzero(caption_image == image)} for image in range(n_images)]
    texts_of = [{c for c in range(n_texts) if words[c] in own} for own in own_words]
    images_of = [{i for i in range(n_images) if words[c] in own_words[i]} for c in range(n_texts)]

    positives = Positives.of(caption_image, n_images, words if same_text else None)
    i2t, t2i = rank_both_ways(images, texts, positives, fps_of_image=5, fps_of_caption=3, block=block)

    check(i2t, images, texts, texts_of, 5)
    check(t2i, texts, images, images_of, 3)
    assert positives.doubles == sum(map(len, images_of)) - n_texts


def test_result_does_not_depend_on_the_block():
    rng = np.random.default_rng(0)
    images, texts = random_unit(rng, 20, 64), random_unit(rng, 60, 64)
    texts[20:40] = texts[:20]  # equal vectors: ties that no block may break
    positives = Positives.of(np.arange(60) % 20, 20)
    whole = rank_both_ways(images, texts, positives, fps_of_image=7, fps_of_caption=7, block=1000)
    for block in (3, 7, 32):
        cut = rank_both_ways(images, texts, positives, fps_of_image=7, fps_of_caption=7, block=block)
        for one, other in zip(whole, cut, strict=True):
            for name in vars(one):
                np.testing.assert_array_equal(vars(one)[name], vars(other)[name])


def test_a_model_that_gives_everything_the_same_score_ranks_last():
    images, texts = np.ones((4, 1), np.float32), np.ones((12, 1), np.float32)
    i2t, t2i = rank_both_ways(images, texts, Positives.of(np.arange(12) // 3, 4), fps_of_image=2, fps_of_caption=1)
    assert (i2t.gt_rank == 10).all()  # behind the nine captions of other images
    assert (t2i.gt_rank == 4).all()
    assert i2t.fp[0].tolist() == [3, 4]  # of equal scores the lower index


def test_zero_and_minus_zero_tie():
    """A product of -1e-60 is -0.0 in float32."""
    images = np.array([[1, 0, 0], [0, -1e-30, 1], [0, 0, 1]], np.float32)
    texts = np.array([[1, 1e-30, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    _, t2i = rank_both_ways(images, texts, Positives.of(np.arange(3), 3), fps_of_caption=2)
    assert t2i.fp[0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda images, texts, owner: images.__setitem__((1, 0), np.nan),
            "1 of 3 image embeddings are zero or not finite, first row 1",
        ),
        (
            lambda images, texts, owner: texts.__setitem__(4, 0),
            "1 of 6 text embeddings are zero or not finite, first row 4",
        ),
        (
            lambda images, texts, owner: owner.__setitem__(slice(0, 2), 1),
            "1 of 3 images have no caption, first image 0",
        ),
        (lambda images, texts, owner: owner.__setitem__(0, 3), r"must lie in \[0, 3\), got 0 to 3"),
    ],
)
def test_refuses_what_cannot_be_ranked(change, message):
    images, texts, owner = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32).repeat(2, 0), np.arange(6) // 2
    check_embeddings(images, texts, owner)
    change(images, texts, owner)
    with pytest.raises(UserError, match=message):
        check_embeddings(images, texts, owner)


def test_refuses_shapes_that_do_not_fit():
    with pytest.raises(UserError, match=r"got \(3, 3\) and \(6, 4\)"):
        check_embeddings(np.eye(3, dtype=np.float32), np.ones((6, 4), np.float32), np.arange(6) // 2)
    with pytest.raises(UserError, match=r"each of the 3 captions, got shape \(2,\)"):
        check_embeddings(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), np.arange(2))


def test_warns_of_vectors_that_are_not_of_unit_length(caplog):
    with caplog.at_level(logging.WARNING):
        check_embeddings(np.eye(3, dtype=np.float32), 2 * np.eye(3, dtype=np.float32), np.arange(3))
    assert "3 of 3 text embeddings are not of unit length" in caplog.text
