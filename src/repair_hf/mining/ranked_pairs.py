"""Score and rank single pairs of a query and a candidate, wherever the candidate stands in the ranking."""

from __future__ import annotations

import numpy as np
import torch

from repair_hf.mining.scores import CELLS, exact_scores, screen_error
from repair_hf.pairs.truth import Truth

RANKED_AT_ONCE = 1024  # pairs


def rank_pairs(
    direction: str,
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    positives: Truth,
    q: np.ndarray,
    candidate: np.ndarray,
    *,
    is_answer: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and full ranks (see `ranking`) of candidates for queries `q`, as int64 rows, (P,) each.

    `is_answer` says whether the candidates count as positives: ties are ranked pessimistically.
    """
    images, texts = image_embeddings, text_embeddings
    eps = screen_error(images, texts, torch.float32)
    queries, candidates = (texts, images) if direction == "t2i" else (images, texts)
    score, rank = np.empty(len(q), np.float32), np.ones(len(q), np.int64)
    in_order = np.argsort(q, kind="stable")  # so that a query's scores are computed once
    for start in range(0, len(q), RANKED_AT_ONCE):
        some = in_order[start : start + RANKED_AT_ONCE]
        distinct, place = np.unique(q[some], return_inverse=True)
        vectors = queries[distinct]  # (Q, D)
        panel = torch.from_numpy(vectors.astype(np.float64))
        score[some] = mine = exact_scores(candidates, candidate[some], panel, place)
        low, high = mine[:, None] - np.float32(eps), mine[:, None] + np.float32(eps)  # exact scores decide in between
        step = max(1, CELLS // max(RANKED_AT_ONCE, candidates.shape[1]))
        for first in range(0, len(candidates), step):
            screened = (vectors @ candidates[first : first + step].T)[place]  # (P, c)
            is_ahead = screened > high
            rank[some] += np.count_nonzero(is_ahead, axis=1)
            row, column = np.divmod(np.flatnonzero((screened >= low) & ~is_ahead), screened.shape[1])
            other, item = first + column, candidate[some[row]]
            exact = exact_scores(candidates, other, panel, place[row])
            is_before, is_tied = exact > mine[row], exact == mine[row]
            other_answers = are_answers(positives, direction, q[some[row]], other)
            is_before |= is_tied & np.where(other_answers == is_answer, other < item, ~other_answers) & (other != item)
            rank[some] += np.bincount(row[is_before], minlength=len(some))
    return score, rank


def are_answers(positives: Truth, direction: str, query: np.ndarray, candidate: np.ndarray) -> np.ndarray:
    """Return which pairs of a query and a candidate are positive, (P,)."""
    captions, images = (query, candidate) if direction == "t2i" else (candidate, query)
    return positives.match(images, captions)
