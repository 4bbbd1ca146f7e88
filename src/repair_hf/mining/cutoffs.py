"""Cutoffs that keep most screened pairs from being scored exactly: guessed, raised, and verified in the end.

With `scores.screen_error` as eps, a pair with the screened score s

- is ahead of a positive of score g if s >= g + eps, is not if s < g - eps, and is scored exactly in between;
- is none of a query's k best if s < (k-th best s) - 2 eps: k others score at least (k-th best s) - eps.

The k-th best score is only known at the end. A cutoff is guessed from the candidates seen so far, with a margin, and
raised as more are seen. Blocks are strided samples, so a sorted collection does no harm. In the end a query's k best
are certain if the k-th of them scores at least eps above every cutoff that was used. The few other queries are ranked
directly.
"""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from repair_hf.mining.scores import decode

MARGIN = 3.0  # standard deviations by which a guessed cutoff may be off
DEEP = 0.02  # a positive behind this share of the candidates is ranked by counting whole blocks
TIES = 8  # a query with more than this times k pairs above its cutoff (ties) is ranked directly
LOWEST = np.finfo(np.float32).min  # above the -inf that marks positives


class Cutoffs:
    """Screened scores above which the queries of one direction consider a candidate."""

    def __init__(self, gt_score: np.ndarray, k: int, eps: float) -> None:
        self.gt_score, self.k, self.eps = gt_score, k, eps  # (Q,) the best positives' scores
        self.top_k = np.full(len(gt_score), np.inf, np.float32)  # from which a pair may be among a query's k best
        self.highest = np.full(len(gt_score), LOWEST)  # the highest `top_k` that was used for any of the candidates
        self.is_deep = np.zeros(len(gt_score), bool)  # so many are ahead of the positive that blocks are counted
        self.has_ties = np.zeros(len(gt_score), bool)  # too many candidates tie for the k best

    def guess(self, queries: slice, scores: np.ndarray, share: float) -> None:
        """Guess from a first share of the candidates. `scores`: (q, c), screened, -inf where positive."""
        if self.k:
            wanted = rank_in_part(self.k, share)
            top_k = _about_the_best(scores, wanted)  # (q,)
            above = np.count_nonzero(scores >= top_k[:, None], axis=1)
            self.has_ties[queries] = (above > TIES * self.k * share + 4 * wanted) & (share < 1)
            top_k = np.maximum(top_k - np.float32(2 * self.eps), LOWEST)
            self.top_k[queries] = np.where(self.has_ties[queries], np.inf, top_k)
        may_be_ahead = self.gt_score[queries] - np.float32(self.eps)
        ahead = np.count_nonzero(scores >= may_be_ahead[:, None], axis=1)
        is_deep = (ahead > DEEP * scores.shape[1]) & (ahead > 1)
        self.is_deep[queries] = is_deep & (may_be_ahead < self.top_k[queries])  # the others are considered anyway

    def lowest(self, queries: slice = slice(None)) -> np.ndarray:
        """(q,) screened score from which a pair is considered, as one of the k best or as ahead of the positive."""
        may_be_ahead = np.where(self.is_deep[queries], np.inf, self.gt_score[queries] - self.eps)
        return np.minimum(self.top_k[queries], may_be_ahead).astype(np.float32)

    def ahead(self, query: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which pairs, (P,), are certainly ahead of the positive, and for which only the exact score can say."""
        low, high = (
            np.where(self.is_deep, np.inf, self.gt_score + sign * self.eps).astype(np.float32) for sign in (-1, 1)
        )
        is_ahead = scores >= high[query]
        return is_ahead, (scores >= low[query]) & ~is_ahead

    def uncertain(self, keys: np.ndarray) -> np.ndarray:
        """(Q,) whether a candidate below the cutoff may belong to the k best; `keys`, (Q, k), are those found."""
        if not keys.shape[1]:
            return self.has_ties
        highest = np.maximum(self.top_k, self.highest)
        is_certain = (decode(keys[:, -1])[0] >= highest + np.float32(self.eps)) | (highest == LOWEST)
        return self.has_ties | ~is_certain

    @classmethod
    def merged(cls, parts: list[Cutoffs]) -> Cutoffs:
        """Merge the guesses of several parts of the candidates."""
        whole = cls(parts[0].gt_score, parts[0].k, parts[0].eps)
        whole.is_deep = np.any([part.is_deep for part in parts], axis=0)
        whole.has_ties = np.any([part.has_ties for part in parts], axis=0)
        top_k = [part.top_k for part in parts]
        whole.top_k = np.where(whole.has_ties, np.inf, np.min(top_k, axis=0)).astype(np.float32)
        whole.highest = np.max(top_k, axis=0)
        return whole

    def raise_to(self, score: np.ndarray) -> None:
        """Raise the cutoffs to what the k-th best probably scores, (Q,), less the error."""
        self.top_k = np.maximum(self.top_k, score - np.float32(2 * self.eps))


def rank_in_part(k: int, share: float) -> int:
    """Return a rank in a random share of the candidates that very likely lies behind the k-th best of all."""
    expected = k * share
    return min(k, math.ceil(expected + MARGIN * math.sqrt(expected * (1 - share))) + (share < 1))


def _about_the_best(scores: np.ndarray, wanted: int) -> np.ndarray:
    """At most the `wanted`-th best score of each row, and close to it: (q, c) to (q,)."""
    width = scores.shape[1]
    if wanted > width:
        return np.full(len(scores), LOWEST)
    if wanted < width // 64:  # sort the best of every eight instead of all
        first, *others = np.split(scores[:, : width // 8 * 8], 8, axis=1)
        scores = reduce(lambda best, part: np.maximum(best, part, out=best), others, first.copy("K"))
    return np.maximum(np.partition(np.ascontiguousarray(scores), -wanted, axis=1)[:, -wanted], LOWEST)
