"""The ranking of some queries of one direction: each one's best positive and best non-positives."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import numpy as np

from repair_hf.mining.scores import LOW32, NO_KEY, best_keys, decode, keys_of

POSITIVES_AT_ONCE = 1024  # compared with the false positives of their queries


@dataclass(frozen=True)
class Ranking:
    """The ranking of one direction: each query's best positive and its k best non-positives.

    Args:
        gt: (Q,) the best-scored positive.
        gt_score: (Q,) its cosine, float32.
        gt_rank: (Q,) its rank.
        fp: (Q, k) the best non-positives, best first; -1 where there are fewer than k.
        fp_score: (Q, k) their cosines, float32; -inf where there is none.
        fp_rank: (Q, k) their ranks.
    """

    gt: np.ndarray
    gt_score: np.ndarray
    gt_rank: np.ndarray
    fp: np.ndarray
    fp_score: np.ndarray
    fp_rank: np.ndarray


class Queries:
    """What is known so far of the ranking of Q queries, with k non-positives each.

    Non-positives are counted that are ahead of a target, which is by default the best positive: those of greater keys.
    """

    def __init__(self, count: int, k: int) -> None:
        self.k = k
        self.gt = np.full(count, -1)  # (Q,)
        self.gt_score = np.full(count, -np.inf, np.float32)  # (Q,)
        self.target = np.full(count, keys_of(np.array([np.inf], np.float32)))  # (Q,) keys; none is greater
        self.ahead = np.zeros(count, np.int64)  # (Q,) non-positives ahead of the target
        self.keys = np.full((count, k), NO_KEY)  # (Q, k) of the best non-positives, best first
        self.positives_ahead = np.zeros((count, k), np.int64)  # (Q, k) between a non-positive and the one before
        self.lock = Lock()

    def offer_positives(self, query: np.ndarray, candidate: np.ndarray, score: np.ndarray) -> None:
        """Keep each query's best positive, its target; of equal ones the lower. All are (P,)."""
        query, best = _best_of_each(query, keys_of(score, candidate), 1)
        known = keys_of(self.gt_score[query], np.where(self.gt[query] < 0, LOW32, self.gt[query]))
        query, best = query[best[:, 0] > known], best[best[:, 0] > known, 0]
        self.gt_score[query], self.gt[query] = decode(best)
        self.target[query] = keys_of(self.gt_score[query], LOW32)  # of ties, non-positives come first

    def offer(self, query: np.ndarray, keys: np.ndarray) -> None:
        """Keep the k best of non-positives, (P,), and of those known already."""
        query, best = _best_of_each(query, keys, self.k)
        with self.lock:
            both = np.concatenate([self.keys[query], best], axis=1)
            both.sort(axis=1)
            self.keys[query] = both[:, : -self.k - 1 : -1]

    def kth_score(self, which: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the score of the k-th best known non-positive of some queries, (q,); -inf where there are fewer."""
        return decode(self.keys[which, -1])[0] if self.k else np.full(len(self.gt[which]), np.inf, np.float32)

    def count_positives(self, query: np.ndarray, score: np.ndarray) -> None:
        """Count each positive, (P,), in the rank of the first non-positive behind it."""
        for start in range(0, len(query), POSITIVES_AT_ONCE):
            part = slice(start, start + POSITIVES_AT_ONCE)
            is_ahead = decode(self.keys[query[part]])[0] >= score[part, None]  # (p, k) non-positives of the positive
            place = np.count_nonzero(is_ahead, axis=1)
            is_before_one = place < self.k
            with self.lock:
                np.add.at(self.positives_ahead, (query[part][is_before_one], place[is_before_one]), 1)

    def ranking(self) -> Ranking:
        """Return the ranking, when all candidates were offered and all positives counted."""
        fp_score, fp = decode(self.keys)
        fp_rank = np.cumsum(self.positives_ahead, axis=1) + 1 + np.arange(self.k)
        return Ranking(self.gt, self.gt_score, 1 + self.ahead, fp, fp_score, fp_rank)


def _best_of_each(query: np.ndarray, keys: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct queries, (q,), and the k greatest keys of each, (q, k)."""
    distinct, place = np.unique(query, return_inverse=True)
    return distinct, best_keys(place, keys, len(distinct), k)
