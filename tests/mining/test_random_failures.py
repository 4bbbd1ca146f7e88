"""Random false positives: the same queries, distinct wrong answers, with the scores and ranks that mining gives."""

import numpy as np
import pytest

from repair_hf.mining.false_positives import mine_false_positives
from repair_hf.mining.random_failures import at_random
from repair_hf.pairs.truth import Truth, wordings
from tests.mining.embeddings import random_unit

CAPTION_IMAGE = np.array([0, 0, 1, 2, 2, 2, 3, 4, 5, 5])
TEXTS = [f"caption {k}" for k in range(9)] + ["caption 3"]  # the last caption equals one of image 2


@pytest.fixture(scope="module")
def mined():
    rng = np.random.default_rng(0)
    images, texts = random_unit(rng, 6, 4), random_unit(rng, 10, 4)
    failures = mine_false_positives(images, texts, CAPTION_IMAGE, d_i2t=3, d_t2i=2, same_text_is_positive=TEXTS)
    return failures, images, texts, Truth.annotated(CAPTION_IMAGE, 6, wording=wordings(TEXTS))


def test_queries_stay_and_any_wrong_answers_are_drawn_each_once(mined):
    kept = ("direction", "q", "gt", "gt_score", "gt_rank")
    own = {(k, image) for k, image in enumerate(CAPTION_IMAGE.tolist())} | {(3, 5), (9, 2)}
    drawn = [at_random(*mined, seed=seed).to_list() for seed in range(15)]
    for rows in drawn:
        assert [[row[name] for name in kept] for row in rows] == [[row[name] for name in kept] for row in mined[0]]
        pairs = [(row["q"], row["fp"]) if row["direction"] == "t2i" else (row["fp"], row["q"]) for row in rows]
        assert not own & set(pairs)
        assert len({key(row) for row in rows}) == len(rows)
    assert drawn[3] == at_random(*mined, seed=3).to_list() != drawn[4]
    assert {key(row)[2] for rows in drawn for row in rows if key(row)[:2] == ("t2i", 0)} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("at_once", [1024, 7])
def test_scores_and_ranks_are_those_that_mining_gives_the_same_pairs(monkeypatch, at_once):
    monkeypatch.setattr("repair_hf.mining.ranking.PAIRS_AT_ONCE", at_once)
    monkeypatch.setattr("repair_hf.mining.ranking.PANEL", (4 * at_once, 4 * at_once))  # candidates in several panels
    monkeypatch.setattr("repair_hf.mining.ranking.CAPTIONS_AT_ONCE", 4 * at_once)
    rng = np.random.default_rng(0)
    images, texts = random_unit(rng, 60, 48), random_unit(rng, 180, 48)
    images[20:40], texts[100:160:2] = images[:20], texts[:60:2]  # ties, also with positives
    caption_image = np.arange(180) % 60
    sizes = {"k_mine": 180, "d_i2t": 177, "d_t2i": 59}  # every wrong answer
    everything = {key(row): row for row in mine_false_positives(images, texts, caption_image, **sizes)}
    failures = mine_false_positives(images, texts, caption_image, d_i2t=5, d_t2i=3)
    positives = Truth.annotated(caption_image, 60)
    rows = at_random(failures, images, texts, positives).to_list()
    assert len(rows) == 60 * 5 + 180 * 3
    for row in rows:
        assert row == everything[key(row)]


def key(row: dict) -> tuple[str, int, int]:
    return row["direction"], row["q"], row["fp"]
