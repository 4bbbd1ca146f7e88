"""Seeds that no failure chose: what repair would start from if it did not look where the retriever errs.

In:  mined failures, and the vectors that they were mined with.
Out: the same queries with as many false positives each, drawn at random; for the ablation "w/o Failure".
"""

from __future__ import annotations

import numpy as np
from datasets import Dataset

from repair_hf.mining import FEATURES
from repair_hf.rankings import Positives

AT_ONCE = 1024  # queries that are ranked together


def at_random(
    failures: Dataset, image_embeddings: np.ndarray, text_embeddings: np.ndarray, positives: Positives, seed: int = 0
) -> Dataset:
    """Put a wrong answer drawn at random in the place of each false positive.

    Args:
        failures: Rows of `mine_false_positives`.
        image_embeddings: Unit vectors, float32.
        text_embeddings: Unit vectors, float32.
        positives: What counts as an answer.
        seed: Of the draws.

    Shape:
        image_embeddings: (N, D). text_embeddings: (M, D).

    Returns:
        Rows of the same columns; `fp_score` and `fp_rank` are those of what was drawn. A query gets no false positive twice.
    """
    columns = {name: np.array(failures[name][:]) for name in failures.column_names if name in FEATURES}
    images, texts = np.asarray(image_embeddings, np.float32), np.asarray(text_embeddings, np.float32)
    rng = np.random.default_rng(seed)
    is_t2i = columns["direction"] == "t2i"
    for here, queries, candidates in ((is_t2i, texts, images), (~is_t2i, images, texts)):
        rows = np.flatnonzero(here)
        drawn, q = rng.integers(0, len(candidates), len(rows)), columns["q"][rows]
        while True:  # ends: what was mined are as many wrong answers of each query, all different
            is_bad = _answers(positives, *((q, drawn) if candidates is images else (drawn, q)))
            _, first = np.unique(q * len(candidates) + drawn, return_index=True)
            is_bad[np.setdiff1d(np.arange(len(rows)), first)] = True  # drawn already
            if not is_bad.any():
                break
            drawn[is_bad] = rng.integers(0, len(candidates), int(is_bad.sum()))
        columns["fp"][rows] = drawn
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            scores = queries[columns["q"][some]] @ candidates.T  # (B, candidates)
            score = np.take_along_axis(scores, columns["fp"][some][:, None], 1)
            columns["fp_score"][some] = score[:, 0]
            columns["fp_rank"][some] = 1 + (scores > score).sum(1)
    return Dataset.from_dict(columns, features=FEATURES)


def _answers(positives: Positives, captions: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Which pairs of a caption and an image are positive, (n,)."""
    return np.isin(positives.group[captions] * positives.n_images + images, positives.members)
