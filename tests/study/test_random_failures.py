"""Random false positives: the same queries, distinct wrong answers, with the scores and ranks of the whole matrix."""

import numpy as np
import pytest

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.mining.mine import mine
from repair_hf.pairs.dataset import load_pairs
from repair_hf.study.random_failures import random_failures


def test_queries_stay_and_any_wrong_answers_are_drawn_each_once(pairs_folder, clip_folder):
    pairs = load_pairs(pairs_folder, split="all")
    encoder = DualEncoder.from_pretrained(clip_folder)
    mined = mine(str(clip_folder), pairs, d_i2t=4, d_t2i=3)
    drawn = [random_failures(mined, pairs, encoder, seed).to_list() for seed in range(20)]
    kept = ("direction", "q", "gt", "gt_score", "gt_rank", "q_id", "gt_id")
    images, texts = encoder.embed_pairs(pairs)
    for rows in drawn:
        assert [[row[name] for name in kept] for row in rows] == [[row[name] for name in kept] for row in mined]
        assert len({(row["direction"], row["q"], row["fp"]) for row in rows}) == len(rows)
        for row in rows:
            is_t2i = row["direction"] == "t2i"
            query, candidates = (texts[row["q"]], images) if is_t2i else (images[row["q"]], texts)
            caption, image = (row["q"], row["fp"]) if is_t2i else (row["fp"], row["q"])
            assert pairs.caption_image[caption] != image
            scores = candidates @ query
            assert row["fp_score"] == pytest.approx(scores[row["fp"]], abs=1e-6)
            assert abs(row["fp_rank"] - 1 - np.sum(scores > scores[row["fp"]])) <= 1  # one may tie
    assert drawn[3] == random_failures(mined, pairs, encoder, 3).to_list() != drawn[4]
    answers = {row["fp"] for rows in drawn for row in rows if (row["direction"], row["q"]) == ("t2i", 0)}
    assert answers == set(range(len(images))) - {0}
