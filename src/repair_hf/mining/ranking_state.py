"""The ranking of each query's best positive and best non-positives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from repair_hf.mining.scores import NO_KEY, best_keys, decode, kth_score

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


class RankingState:
    """What is known so far of the ranking of one direction's Q queries, with k non-positives each."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.gt = np.full(queries, -1)  # (Q,)
        self.gt_score = np.full(queries, -np.inf, np.float32)  # (Q,)
        self.non_positives_ahead = np.zeros(queries, np.int64)  # (Q,) of the best positive
        self.keys = np.full((queries, k), NO_KEY)  # (Q, k), best first
        self.is_uncertain = np.zeros(queries, bool)  # (Q,) whether `keys` may miss some
        self.positives_ahead = np.zeros((queries, k), np.int64)  # (Q, k)
        self.pool: list[tuple[np.ndarray, np.ndarray]] = []  # queries and keys that may be among the k best

    def offer_positives(self, query: np.ndarray, candidate: np.ndarray, scores: np.ndarray) -> None:
        """Keep each query's best positive; of equal ones the lower. All are (P,)."""
        order = np.lexsort((candidate, -scores, query))
        query, best = np.unique(query[order], return_index=True)
        candidate, scores = candidate[order][best], scores[order][best]
        is_better = (scores > self.gt_score[query]) | ((scores == self.gt_score[query]) & (candidate < self.gt[query]))
        self.gt[query[is_better]] = candidate[is_better]
        self.gt_score[query[is_better]] = scores[is_better]

    def add_candidates(self, query: np.ndarray, keys: np.ndarray) -> None:
        """Add pairs, (P,), to the pool."""
        if self.k:
            self.pool.append((query, keys))

    def kth_score(self, k: int) -> np.ndarray:
        """(Q,) the k-th best score of the pool; -inf where it holds fewer."""
        query, keys = (np.concatenate(parts) for parts in zip(*self.pool, strict=True))
        self.pool = [(query, keys)]
        return kth_score(query, keys, len(self.gt), k)

    def drop_below(self, cutoff: np.ndarray) -> None:
        """Drop from the pool what scores less than its query's cutoff, (Q,)."""
        query, keys = self.pool.pop()
        stays = decode(keys)[0] >= cutoff[query]
        self.pool.append((query[stays], keys[stays]))

    def keep_best(self) -> None:
        """Keep the k best of the pool."""
        if self.k:
            self.keys = best_keys(*self.pool.pop(), len(self.gt), self.k)

    def fps_ahead(self, query: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Count the false positives ahead of each positive, (P,): those of its query that score at least as much."""
        ahead = np.empty(len(query), np.int64)
        for some in (slice(start, start + POSITIVES_AT_ONCE) for start in range(0, len(query), POSITIVES_AT_ONCE)):
            ahead[some] = np.count_nonzero(decode(self.keys[query[some]])[0] >= scores[some, None], axis=1)
        return ahead

    def count_positives(self, query: np.ndarray, ahead: np.ndarray) -> None:
        """Count each positive in the rank of the first false positive behind it. Both are (P,)."""
        is_before_one = ahead < self.k
        np.add.at(self.positives_ahead, (query[is_before_one], ahead[is_before_one]), 1)

    def ranking(self) -> Ranking:
        fp_score, fp = decode(self.keys)
        fp_rank = np.cumsum(self.positives_ahead, axis=1, out=self.positives_ahead)
        fp_rank += 1 + np.arange(self.k)
        return Ranking(self.gt, self.gt_score, 1 + self.non_positives_ahead, fp, fp_score, fp_rank)
