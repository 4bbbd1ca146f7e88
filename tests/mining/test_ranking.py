"""Ranks, false positives and their order, compared with a sort of the full ranking."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from repair_hf.mining import cutoffs, ranking
from repair_hf.mining.positives import Positives
from repair_hf.mining.ranking import check_embeddings, rank_both_ways
from repair_hf.runtime.options import UserError
from tests.mining.embeddings import COLLECTIONS, assert_same_rankings, planted, quantised, random_unit


def full_ranking(query: np.ndarray, candidates: np.ndarray, positives: set[int]) -> list[tuple[float, bool, int]]:
    """Every candidate as (score, is positive, index), best first; of equal scores the positive comes last."""
    scores = [np.float32(sum(float(a) * float(b) for a, b in zip(query, row, strict=True))) for row in candidates]
    rows = [(score, place in positives, place) for place, score in enumerate(scores)]
    return sorted(rows, key=lambda row: (-row[0], row[1], row[2]))


def check(found, queries, candidates, positives_of, k):
    for place, (query, positives) in enumerate(zip(queries, positives_of, strict=True)):
        ranked = list(enumerate(full_ranking(query, candidates, positives), 1))
        rank, (score, _, gt) = next(row for row in ranked if row[1][1])
        assert (found.gt[place], found.gt_score[place], found.gt_rank[place]) == (gt, score, rank)
        fps = [(fp, score, rank) for rank, (score, is_positive, fp) in ranked if not is_positive][:k]
        got = list(zip(found.fp[place], found.fp_score[place], found.fp_rank[place], strict=True))
        assert got[: len(fps)] == fps
        assert all(fp == -1 for fp, _, _ in got[len(fps) :])


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
        assert_same_rankings(cut, whole)


def check_against_whole_matrix(i2t, t2i, images, texts, own, k_image, k_caption):
    """Every field of both rankings against sorted rows of the float64 matrix."""
    scores = (images.astype(np.float64) @ texts.astype(np.float64).T).astype(np.float32) + np.float32(0)
    is_positive = own == np.arange(len(images))[:, None]
    for found, table, known, k in ((i2t, scores, is_positive, k_image), (t2i, scores.T, is_positive.T, k_caption)):
        index = np.broadcast_to(np.arange(table.shape[1]), table.shape)
        order = np.lexsort((index, known, -table), axis=1)
        ranked = np.take_along_axis(known, order, axis=1)
        first = ranked.argmax(axis=1)
        np.testing.assert_array_equal(found.gt_rank, 1 + first)
        np.testing.assert_array_equal(found.gt, order[np.arange(len(order)), first])
        np.testing.assert_array_equal(found.gt_score, table[np.arange(len(order)), found.gt])
        place = np.argsort(ranked, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(found.fp, np.take_along_axis(order, place, axis=1))
        np.testing.assert_array_equal(found.fp_rank, 1 + place)
        np.testing.assert_array_equal(found.fp_score, np.take_along_axis(table, found.fp, axis=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("k_image", "k_caption", "block"), [(0, 0, 128), (5, 1, 96), (40, 40, 128), (0, 7, 2048)])
@pytest.mark.parametrize("name", COLLECTIONS)
def test_many_panels_equal_the_whole_matrix(name, k_image, k_caption, block, dtype, monkeypatch):
    monkeypatch.setattr(ranking, "screen_dtype", lambda device: dtype)
    images, texts, own = COLLECTIONS[name](np.random.default_rng(1))
    found = rank_both_ways(
        images, texts, Positives.of(own, len(images)), fps_of_image=k_image, fps_of_caption=k_caption, block=block
    )
    check_against_whole_matrix(*found, images, texts, own, k_image, k_caption)


@pytest.mark.parametrize("margin", [-1.0, 0.0])
@pytest.mark.parametrize("name", ["good", "classes", "doubles"])
def test_bad_guesses_cost_time_but_no_false_positive(name, margin, monkeypatch):
    """Cutoffs that are guessed too high leave queries with too few candidates: these are ranked directly."""
    monkeypatch.setattr(cutoffs, "MARGIN", margin)
    images, texts, own = COLLECTIONS[name](np.random.default_rng(2))
    found = rank_both_ways(
        images, texts, Positives.of(own, len(images)), fps_of_image=30, fps_of_caption=30, block=128
    )
    check_against_whole_matrix(*found, images, texts, own, 30, 30)


def test_more_false_positives_than_candidates():
    images, texts, own = planted(np.random.default_rng(3), 1.0, n_images=40, n_texts=90)
    i2t, t2i = rank_both_ways(images, texts, Positives.of(own, 40), fps_of_image=90, fps_of_caption=40, block=16)
    captions = np.bincount(own)
    assert ((i2t.fp >= 0).sum(axis=1) == 90 - captions).all()
    assert ((t2i.fp >= 0).sum(axis=1) == 39).all()
    assert (i2t.fp_score[i2t.fp < 0] == -np.inf).all()


def test_bfloat16_alone_would_misorder():
    """So the tests above, which screen in bfloat16, show that exact scores are needed."""
    images, texts, _ = COLLECTIONS["cone"](np.random.default_rng(1))
    exact = images.astype(np.float64) @ texts.astype(np.float64).T
    screened = (torch.from_numpy(images).bfloat16() @ torch.from_numpy(texts).bfloat16().T).float().numpy()
    assert (exact.argmax(axis=1) != screened.argmax(axis=1)).mean() > 0.9


@pytest.mark.parametrize("n_texts", [1, 6])
def test_a_single_image(n_texts):
    images, texts = random_unit(np.random.default_rng(0), 1), random_unit(np.random.default_rng(1), n_texts)
    i2t, t2i = rank_both_ways(images, texts, Positives.of(np.zeros(n_texts, int), 1), fps_of_image=3, fps_of_caption=3)
    assert i2t.gt_rank.tolist() == [1] and t2i.gt_rank.tolist() == [1] * n_texts
    assert (i2t.fp == -1).all() and (t2i.fp == -1).all()
    assert i2t.gt[0] == (texts.astype(np.float64) @ images[0].astype(np.float64)).astype(np.float32).argmax()


def test_screens_in_full_float32_and_leaves_the_precision_as_it_was(monkeypatch):
    """TF32, which a training run may switch on, exceeds the error bound."""
    settings, seen = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul), []
    before = [setting.fp32_precision for setting in settings]
    plain = torch.mm

    def mm(*arguments, **options):
        seen.append([setting.fp32_precision for setting in settings])
        return plain(*arguments, **options)

    monkeypatch.setattr(torch, "mm", mm)
    try:
        for setting in settings:
            setting.fp32_precision = "tf32"
        rank_both_ways(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), Positives.of(np.arange(3), 3))
        assert [setting.fp32_precision for setting in settings] == ["tf32", "tf32"]
    finally:
        for setting, precision in zip(settings, before, strict=True):
            setting.fp32_precision = precision
    assert seen and all(precision == ["ieee", "ieee"] for precision in seen)


def test_mapped_vectors_give_the_same(tmp_path):
    images, texts, own = planted(np.random.default_rng(4), 1.0, n_images=60)
    for name, vectors in (("images", images), ("texts", texts)):
        np.save(tmp_path / f"{name}.npy", vectors)
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("images", "texts")]
    found = rank_both_ways(*mapped, Positives.of(own, 60), fps_of_image=3, fps_of_caption=3, block=64)
    check_against_whole_matrix(*found, images, texts, own, 3, 3)


@pytest.mark.parametrize("way", [np.s_[::-1], np.s_[:, ::-1], np.s_[::-1, ::-1]])
def test_vectors_that_lie_backwards_give_the_same(way):
    images, texts, own = planted(np.random.default_rng(4), 1.0, n_images=60)
    backwards = [np.ascontiguousarray(vectors[way])[way] for vectors in (images, texts)]
    assert all(min(vectors.strides) < 0 for vectors in backwards)
    expected = rank_both_ways(images, texts, Positives.of(own, 60), fps_of_image=3, fps_of_caption=3)
    found = rank_both_ways(*backwards, Positives.of(own, 60), fps_of_image=3, fps_of_caption=3)
    assert_same_rankings(found, expected)


def test_leaves_the_number_of_threads_as_it_was():
    threads = torch.get_num_threads()
    rank_both_ways(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), Positives.of(np.arange(3), 3))
    assert torch.get_num_threads() == threads


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
    ("kind", "place", "value", "message"),
    [
        ("images", (1, 0), np.nan, "1 of 3 image embeddings are zero or not finite, first row 1"),
        ("texts", 4, 0, "1 of 6 text embeddings are zero or not finite, first row 4"),
        ("own", slice(0, 2), 1, "1 of 3 images have no caption, first image 0"),
        ("own", 0, 3, r"must lie in \[0, 3\), got 0 to 3"),
    ],
)
def test_refuses_what_cannot_be_ranked(kind, place, value, message):
    data = {"images": np.eye(3, dtype=np.float32), "texts": np.eye(3, dtype=np.float32).repeat(2, 0)}
    data["own"] = np.arange(6) // 2
    check_embeddings(*data.values())
    data[kind][place] = value
    with pytest.raises(UserError, match=message):
        check_embeddings(*data.values())


def test_refuses_shapes_that_do_not_fit():
    with pytest.raises(UserError, match=r"got \(3, 3\) and \(6, 4\)"):
        check_embeddings(np.eye(3, dtype=np.float32), np.ones((6, 4), np.float32), np.arange(6) // 2)
    with pytest.raises(UserError, match=r"each of the 3 captions, got shape \(2,\)"):
        check_embeddings(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), np.arange(2))


def test_warns_of_vectors_that_are_not_of_unit_length(caplog):
    with caplog.at_level(logging.WARNING):
        check_embeddings(np.eye(3, dtype=np.float32), 2 * np.eye(3, dtype=np.float32), np.arange(3))
    assert "3 of 3 text embeddings are not of unit length" in caplog.text
