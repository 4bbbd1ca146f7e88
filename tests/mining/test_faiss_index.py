"""An index that searches everything is exact; otherwise ranks are lower bounds, and the recall is measured."""

import numpy as np
import pytest

from repair_hf.mining import faiss_index
from repair_hf.mining.faiss_index import rank_by_index
from repair_hf.mining.false_positives import find_false_positives, mine_false_positives
from repair_hf.mining.ranking import rank_both_ways
from repair_hf.pairs.truth import Truth, wordings
from tests.mining.embeddings import COLLECTIONS, planted


def search_part(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Search so many times as much of an index as usual; 16 times is everything."""
    monkeypatch.setattr(faiss_index, "PROBED", factor * faiss_index.PROBED)


@pytest.mark.parametrize(("name", "pool"), [("good", 100), ("good", 5), ("classes", 100), ("cone", 5)])
def test_an_index_that_searches_everything_is_exact(name, pool, monkeypatch):
    """Also with a pool of 5, where an image's own captions rank before the 5 best false positives."""
    images, texts, own = COLLECTIONS[name](np.random.default_rng(1))
    positives = Truth.annotated(own, len(images))
    exact = rank_both_ways(images, texts, positives, fps_of_image=5, fps_of_caption=2)
    data = (images, texts, positives)
    search_part(monkeypatch, 16)
    for direction, true, fps, queries in (("i2t", exact[0], 5, len(images)), ("t2i", exact[1], 2, len(texts))):
        ours, recall = rank_by_index(direction, *data, np.arange(queries), fps=fps, pool=pool)
        assert recall == 1.0
        for field in ("gt", "gt_score", "fp", "fp_score", "fp_rank"):
            np.testing.assert_array_equal(vars(ours)[field], vars(true)[field], err_msg=field)
        np.testing.assert_array_equal(ours.gt_rank, np.minimum(true.gt_rank, pool + 1))


def test_ranks_are_lower_bounds_and_the_recall_is_what_was_found(monkeypatch):
    images, texts, own = planted(np.random.default_rng(2), 20.0)
    positives, (n_images, n_texts) = Truth.annotated(own, len(images)), (len(images), len(texts))
    exact = rank_both_ways(images, texts, positives, fps_of_image=n_texts, fps_of_caption=n_images)
    data = (images, texts, positives)
    search_part(monkeypatch, 0.02)
    for name, true, k, queries in (("i2t", exact[0], 20, n_images), ("t2i", exact[1], 10, n_texts)):
        ours, recall = rank_by_index(name, *data, np.arange(queries), fps=k, pool=20)
        true_rank = np.full((len(true.fp), true.fp.shape[1] + 1), 0)  # of each false positive, by its index
        np.put_along_axis(true_rank, np.where(true.fp < 0, -1, true.fp), true.fp_rank, axis=1)
        is_there = ours.fp >= 0
        assert (ours.fp_rank <= np.take_along_axis(true_rank, ours.fp, axis=1))[is_there].all()
        assert (ours.gt_rank <= true.gt_rank).all()
        assert (ours.gt_rank < true.gt_rank).any()
        np.testing.assert_array_equal(ours.gt, true.gt)
        share = np.mean([np.isin(true.fp[q, :k], ours.fp[q]).mean() for q in range(len(ours.fp))])
        assert 0.05 < recall < 0.95
        assert recall == pytest.approx(share, abs=0.05)  # of some queries


def test_scores_and_exclusions_are_those_of_exact_mining(monkeypatch):
    """A caption of equal text is a positive, like an annotated one."""
    images, texts, own = planted(np.random.default_rng(3), 1.0, n_images=60, n_texts=200)
    words = [f"caption {place % 150}" for place in range(200)]
    sizes = {"k_mine": 100, "d_i2t": 3, "d_t2i": 3}
    positives = Truth.annotated(own, 60, wording=wordings(words))
    search_part(monkeypatch, 16)
    found, recall = find_false_positives(images, texts, positives, has_index=True, **sizes)
    assert found.to_list() == mine_false_positives(images, texts, own, **sizes, same_text_is_positive=words).to_list()
    assert recall == {"i2t": 1.0, "t2i": 1.0}


def test_a_direction_that_is_not_asked_for_is_not_searched():
    images, texts, own = planted(np.random.default_rng(4), 1.0, n_images=20, n_texts=60)
    positives = Truth.annotated(own, len(images))
    found, recall = find_false_positives(images, texts, positives, has_index=True, k_mine=100, d_i2t=0, d_t2i=2)
    assert set(found["direction"]) == set(recall) == {"t2i"}
