"""From which screened score on a query looks at a candidate: guessed, raised, and in the end certain or not.

In:  the scores of each query's best positive, and screened scores of some candidates.
Out: for each query the least score that may be among its k best, or stand before its positive; and whether its k best are certain.

With `scores.screen_error` as eps, a pair that screens at s

- stands before a positive of score g if s >= g + eps, does not if s < g - eps, and is scored exactly between;
- is none of a query's k best if s < (k-th best s) - 2 eps: k others score at least (k-th best s) - eps, and it scores less.

The k-th best is known only at the end. A threshold is guessed from the candidates seen so far, with a margin, and raised as
more are seen; parts are strided, so that a sorted collection is no trap. In the end a query has its k best for certain if the
k-th of them scores at least eps above every threshold that was used: whoever was passed over scores less. The few others are
*lost*, and to be ranked directly.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from repair_hf.mining.scores import decode

MARGIN = 3.0  # standard deviations by which a guessed threshold may be off
DEEP = 0.02  # a positive behind this share of the candidates is ranked by counting blocks, not pair by pair
TIES = 8  # times k: a query with so many pairs above its threshold (ties) is ranked directly
LOWEST = np.finfo(np.float32).min  # above the -inf that marks positives


class Seeking:
    """What the queries of one direction look for.

    Args:
        gt_score: (Q,) score of each query's best positive.
        eps: Bound of the screen's error.

    Attributes:
        least: (Q,) screened score from which a pair may be among the k best; inf where none is sought.
        passed: (Q,) the greatest that `least` was for any of the candidates.
        is_deep: (Q,) whether the candidates before the positive are so many that whole blocks are counted.
        is_lost: (Q,) whether too many candidates tie for the k best.
    """

    def __init__(self, gt_score: np.ndarray, eps: float) -> None:
        self.gt_score, self.eps = gt_score, eps
        self.least = np.full(len(gt_score), np.inf, np.float32)
        self.passed = np.full(len(gt_score), LOWEST)
        self.is_deep = np.zeros(len(gt_score), bool)
        self.is_lost = np.zeros(len(gt_score), bool)

    @property
    def may_be_ahead(self) -> np.ndarray:
        """(Q,) screened score from which a pair may stand before the positive; inf where blocks are counted."""
        return np.where(self.is_deep, np.inf, self.gt_score - self.eps).astype(np.float32)

    @property
    def is_ahead(self) -> np.ndarray:
        """(Q,) screened score from which a pair stands before the positive for certain; inf where blocks are counted."""
        return np.where(self.is_deep, np.inf, self.gt_score + self.eps).astype(np.float32)

    def begin(self, queries: slice, scores: np.ndarray, k: int, share: float) -> None:
        """Guess from the first part of the candidates. `scores`: (q, c), screened, -inf where positive."""
        if k:
            wanted = rank_in_part(k, share)
            least = _about_the_best(scores, wanted)  # (q,)
            above = np.count_nonzero(scores >= least[:, None], axis=1)
            self.is_lost[queries] = (above > TIES * k * share + 4 * wanted) & (share < 1)
            least = np.maximum(least - np.float32(2 * self.eps), LOWEST)
            self.least[queries] = np.where(self.is_lost[queries], np.inf, least)
        may_be_ahead = self.gt_score[queries] - np.float32(self.eps)
        ahead = np.count_nonzero(scores >= may_be_ahead[:, None], axis=1)
        is_deep = (ahead > DEEP * scores.shape[1]) & (ahead > 1)
        self.is_deep[queries] = is_deep & (may_be_ahead < self.least[queries])  # the others are looked at anyway

    def threshold(self, queries: slice = slice(None)) -> np.ndarray:
        """(q,) screened score from which a pair is looked at."""
        ahead = np.where(self.is_deep[queries], np.inf, self.gt_score[queries] - self.eps)
        return np.minimum(self.least[queries], ahead).astype(np.float32)

    def lost(self, keys: np.ndarray) -> np.ndarray:
        """(Q,) whose k best, `keys` (Q, k), are not certain: someone who was passed over may score as much."""
        if not keys.shape[1]:
            return self.is_lost
        passed = np.maximum(self.least, self.passed)
        is_certain = (decode(keys[:, -1])[0] >= passed + np.float32(self.eps)) | (passed == LOWEST)
        return self.is_lost | ~is_certain

    @classmethod
    def merged(cls, parts: list[Seeking]) -> Seeking:
        """What several first parts of the candidates tell together."""
        whole = cls(parts[0].gt_score, parts[0].eps)
        whole.is_deep = np.any([part.is_deep for part in parts], axis=0)
        whole.is_lost = np.any([part.is_lost for part in parts], axis=0)
        least = [part.least for part in parts]
        whole.least = np.where(whole.is_lost, np.inf, np.min(least, axis=0)).astype(np.float32)
        whole.passed = np.max(least, axis=0)
        return whole

    def raise_to(self, score: np.ndarray) -> None:
        """(Q,) scores that the k-th best is believed to have at least."""
        self.least = np.maximum(self.least, score - np.float32(2 * self.eps))


def rank_in_part(k: int, share: float) -> int:
    """The rank, among a share of the candidates, of one that very likely stands behind the k-th best of all."""
    expected = k * share
    return min(k, math.ceil(expected + MARGIN * math.sqrt(expected * (1 - share))) + (share < 1))


def _about_the_best(scores: np.ndarray, wanted: int) -> np.ndarray:
    """At most the `wanted`-th best score of each row, and close to it: (q, c) to (q,)."""
    width = scores.shape[1]
    if wanted > width:
        return np.full(len(scores), LOWEST)
    if wanted < width // 64:  # the best of every eight in place of all: less to sort
        first, *others = np.split(scores[:, : width // 8 * 8], 8, axis=1)
        scores = reduce(lambda best, part: np.maximum(best, part, out=best), others, first.copy("K"))
    return np.maximum(np.partition(np.ascontiguousarray(scores), -wanted, axis=1)[:, -wanted], LOWEST)
