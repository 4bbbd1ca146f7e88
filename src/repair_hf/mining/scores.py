"""Exact scores of pairs, the error bound of a fast product, and scores with candidates as sortable integers.

**A score** is a dot product of float32 vectors, summed in float64 and rounded to float32. It comes from one function,
`exact_scores`, pair by pair: it does not depend on what else is scored with it, and equal vectors have equal scores.

**A screened score** comes from a float32 product of whole blocks. It differs from the score by at most

    eps = (D + 4) u / (1 - (D + 4) u) * max|x| * max|y| + D * 2^-126,   u = 2^-24.

For a sum of D products, added in whatever order, with or without fused operations, |fl(x.y) - x.y| <= g_D
sum|x_d||y_d| with g_n = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, 3.1), and
sum|x_d||y_d| <= |x||y| (Cauchy-Schwarz). Rounding the float64 sum adds u|x||y|; the error of that sum and the rounding
of cutoffs less than two more; each product that underflows less than 2^-126.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

AT_ONCE = 1024  # vectors converted to float64 together
PANEL = 2048  # columns whose pairs are scored together
CELLS = 1 << 22  # keys sorted together
U32 = 2.0**-24  # half a unit in the last place of 1 in float32
ROUNDING = 1.001  # more than the norms and eps itself lose, being computed in float32
LOW32 = 0xFFFFFFFF
NO_KEY = (~0x7F800000) << 32  # the key of a score of -inf: below every candidate


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress torch's warnings about sparse tensors and read-only arrays; also a decorator. Not thread-safe."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", message=".*not writable")  # a memory-mapped file
        yield


def exact_scores(rows: np.ndarray, row: np.ndarray, columns: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Score P distinct pairs of a row and a column, (P,) float32. All scores of the package come from here.

    Shape:
        rows: (N, D) float32, may be memory-mapped. columns: (M, D). row, column: (P,) the vectors of each pair.
    """
    scores, panels = np.empty(len(row), np.float32), column // PANEL
    order = np.argsort(panels.astype(np.int64) * len(rows) + row, kind="stable")
    row, column = row[order], column[order]
    ends = np.searchsorted(panels[order], np.arange(len(columns) // PANEL + 2))
    for panel in np.flatnonzero(np.diff(ends)):
        start, stop = ends[panel : panel + 2]
        panel64 = torch.from_numpy(columns[panel * PANEL : (panel + 1) * PANEL].astype(np.float64))
        starts = np.append(start + np.flatnonzero(np.diff(row[start:stop], prepend=-1)), stop)  # of each row's pairs
        for first in range(0, len(starts) - 1, AT_ONCE):
            some = starts[first : first + AT_ONCE + 1]
            pairs, vectors = slice(some[0], some[-1]), torch.from_numpy(rows[row[some[:-1]]].astype(np.float64))
            scores[order[pairs]] = _products(some - some[0], column[pairs] - panel * PANEL, vectors, panel64)
    return scores + np.float32(0)  # + 0 turns -0.0 into 0.0


def _products(ends: np.ndarray, column: np.ndarray, vectors: Tensor, panel: Tensor) -> np.ndarray:
    """Multiply vectors by columns of a panel: those from place ends[k] to ends[k + 1] by vector k."""
    rows, columns = (torch.from_numpy(numbers.astype(np.int64)) for numbers in (ends, column))
    zeros = torch.zeros(len(column), dtype=torch.float64)  # multiplied by beta, so not uninitialised
    size: Any = (len(vectors), len(panel))
    pairs = torch.sparse_csr_tensor(rows, columns, zeros, size, check_invariants=False)
    return torch.sparse.sampled_addmm(pairs, vectors, panel.T, beta=0.0).values().numpy()


def screen_error(rows: np.ndarray, columns: np.ndarray) -> float:
    """Return eps: the maximal difference of a screened score from the exact score."""
    size = rows.shape[1]
    growth = (size + 4) * U32 / (1 - (size + 4) * U32)
    return ROUNDING * (growth * _longest(rows) * _longest(columns) + size * 2.0**-126)


def _longest(vectors: np.ndarray) -> float:
    parts = (torch.from_numpy(vectors[start : start + AT_ONCE]) for start in range(0, len(vectors), AT_ONCE))
    return max(part.norm(dim=1).max().item() for part in parts)


def keys_of(score: np.ndarray, candidate: np.ndarray | int = 0) -> np.ndarray:
    """Encode scores and candidates, (P,) each, as integers that sort alike; of ties the lower candidate is greater."""
    bits = score.view(np.int32).astype(np.int64)
    return (np.where(bits < 0, bits ^ 0x7FFFFFFF, bits) << 32) | (LOW32 - np.asarray(candidate, np.int64))


def decode(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decode keys to scores and candidates; -1 where there is none."""
    ascending = keys >> 32
    score = np.where(ascending < 0, ascending ^ 0x7FFFFFFF, ascending).astype(np.int32).view(np.float32)
    return score, np.where(keys > NO_KEY, LOW32 - (keys & LOW32), -1)


def best_keys(query: np.ndarray, keys: np.ndarray, n_queries: int, k: int) -> np.ndarray:
    """Return each query's k greatest keys, best first, (n_queries, k); NO_KEY where there are fewer."""
    found = np.full((n_queries, k), NO_KEY)
    order = np.sort((query.astype(np.int64) << 32) | np.arange(len(query))) & LOW32  # faster than argsort
    count = np.bincount(query, minlength=n_queries)
    ends = np.cumsum(count)
    at_once = max(1, CELLS // max(1, int(count.max(initial=0))))
    for first in range(0, n_queries, at_once):
        some = count[first : first + at_once]
        start = ends[first] - count[first]
        rows = np.full((len(some), int(some.max())), NO_KEY)
        rows[np.arange(rows.shape[1]) < some[:, None]] = keys[order[start : start + some.sum()]]
        rows.sort(axis=1)
        found[first : first + at_once, : rows.shape[1]] = rows[:, : -k - 1 : -1]
    return found


def kth_score(query: np.ndarray, score: np.ndarray, n_queries: int, k: int) -> np.ndarray:
    """Return each query's k-th greatest score, (n_queries,); -inf where there are fewer."""
    ordered = np.sort((query.astype(np.int64) << 32) + (keys_of(score) >> 32))  # by query, then by score
    count = np.bincount(query, minlength=n_queries)
    enough = np.flatnonzero(count >= k)
    found = np.full(n_queries, NO_KEY)
    found[enough] = (ordered[np.cumsum(count)[enough] - k] - (enough << 32)) << 32
    return decode(found)[0]
