"""Draw random false positives, for the ablation without mining."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from datasets import Dataset

from repair_hf.mining.false_positives import FEATURES
from repair_hf.mining.positives import Positives
from repair_hf.mining.scores import CELLS, exact_scores, keys_of, quietly, screen_error

RANKED_AT_ONCE = 1024  # false positives


@quietly()
def at_random(
    failures: Dataset, image_embeddings: np.ndarray, text_embeddings: np.ndarray, positives: Positives, seed: int = 0
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
    rng, eps = np.random.default_rng(seed), screen_error(images, texts, torch.float32)
    for direction, queries, candidates in (("t2i", texts, images), ("i2t", images, texts)):
        is_answer = partial(_is_answer, positives, direction)
        rows = np.flatnonzero(columns["direction"] == direction)
        drawn, q = rng.integers(0, len(candidates), len(rows)), columns["q"][rows]
        while True:  # ends: as many distinct wrong answers of each query were mined
            is_bad = is_answer(q, drawn)
            _, first = np.unique(q * len(candidates) + drawn, return_index=True)
            is_bad[np.setdiff1d(np.arange(len(rows)), first)] = True  # drawn already
            if not is_bad.any():
                break
            drawn[is_bad] = rng.integers(0, len(candidates), int(is_bad.sum()))
        columns["fp"][rows] = drawn
        in_order = np.argsort(q, kind="stable")  # so that a query's scores are computed once
        for some in (in_order[start : start + RANKED_AT_ONCE] for start in range(0, len(rows), RANKED_AT_ONCE)):
            score, rank = _ranked(queries, candidates, q[some], drawn[some], eps, is_answer)
            columns["fp_score"][rows[some]], columns["fp_rank"][rows[some]] = score, rank
    return Dataset.from_dict(columns, features=FEATURES)


def _is_answer(positives: Positives, direction: str, query: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """Return which pairs of a query and a candidate are positive, (P,)."""
    captions, images = (query, candidate) if direction == "t2i" else (candidate, query)
    pairs = positives.group[captions] * positives.n_images + images
    low, high = (np.searchsorted(positives.members, pairs, side=side) for side in ("left", "right"))
    return low < high


def _ranked(
    queries: np.ndarray,
    candidates: np.ndarray,
    q: np.ndarray,
    fp: np.ndarray,
    eps: float,
    is_answer: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and full ranks (see `ranking`) of the false positives `fp` of queries `q`, (P,) each."""
    distinct, place = np.unique(q, return_inverse=True)
    vectors = queries[distinct]  # (Q, D)
    panel = torch.from_numpy(vectors.astype(np.float64))
    score, rank = exact_scores(candidates, fp, panel, place), np.ones(len(q), np.int64)
    low, high = score[:, None] - np.float32(eps), score[:, None] + np.float32(eps)  # exact scores decide in between
    step = max(1, CELLS // max(RANKED_AT_ONCE, candidates.shape[1]))
    for start in range(0, len(candidates), step):
        screened = (vectors @ candidates[start : start + step].T)[place]  # (P, c)
        is_ahead = screened > high
        rank += np.count_nonzero(is_ahead, axis=1)
        row, column = np.divmod(np.flatnonzero((screened >= low) & ~is_ahead), screened.shape[1])
        candidate = start + column
        exact = exact_scores(candidates, candidate, panel, place[row])
        is_before = keys_of(exact, candidate) > keys_of(score[row], fp[row])
        tied = np.flatnonzero(is_before & (exact == score[row]))
        is_before[tied] = ~is_answer(q[row[tied]], candidate[tied])  # ties are ranked pessimistically
        rank += np.bincount(row[is_before], minlength=len(rank))
    return score, rank
