"""Draw random false positives, for the ablation without mining."""

from __future__ import annotations

import numpy as np
from datasets import Dataset

from repair_hf.mining.false_positives import FEATURES
from repair_hf.mining.ranking import rank_pairs
from repair_hf.mining.scores import quietly
from repair_hf.pairs.truth import Truth


@quietly()
def at_random(
    failures: Dataset, image_embeddings: np.ndarray, text_embeddings: np.ndarray, positives: Truth, seed: int = 0
) -> Dataset:
    """Replace each false positive by a wrong answer drawn at random.

    Args:
        failures: Rows of `mine_false_positives`.
        image_embeddings: Unit vectors, (N, D) float32.
        text_embeddings: Unit vectors, (M, D) float32.
        positives: Which captions answer which images.
        seed: Seed of the draws.

    Returns:
        Rows of the same columns, with the `fp_score` and `fp_rank` of what was drawn. The false positives of a query
        are distinct.
    """
    columns = {name: np.array(failures[name][:]) for name in failures.column_names if name in FEATURES}
    images, texts = np.asarray(image_embeddings, np.float32), np.asarray(text_embeddings, np.float32)
    rng = np.random.default_rng(seed)
    for direction, n_candidates in (("t2i", len(images)), ("i2t", len(texts))):
        rows = np.flatnonzero(columns["direction"] == direction)
        drawn, q = rng.integers(0, n_candidates, len(rows)), columns["q"][rows]
        while True:  # ends: as many distinct wrong answers of each query were mined
            is_bad = positives.match(*((drawn, q) if direction == "t2i" else (q, drawn)))
            _, first = np.unique(q * n_candidates + drawn, return_index=True)
            is_bad[np.setdiff1d(np.arange(len(rows)), first)] = True  # drawn already
            if not is_bad.any():
                break
            drawn[is_bad] = rng.integers(0, n_candidates, int(is_bad.sum()))
        columns["fp"][rows] = drawn
        ranked = rank_pairs(direction, images, texts, positives, q, drawn)
        columns["fp_score"][rows], columns["fp_rank"][rows] = ranked
    return Dataset.from_dict(columns, features=FEATURES)
