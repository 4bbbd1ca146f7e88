"""Exact scores of pairs, the error bound of a fast product, and scores with candidates as sortable integers.

**A score** is a dot product of float32 vectors, summed in float64 and rounded to float32. It comes from one function,
`exact_scores`, pair by pair: it does not depend on what else is scored with it, and equal vectors have equal scores.

**A screened score** comes from a float32 product of whole blocks. It differs from the score by at most

    eps = (D + 4) u / (1 - (D + 4) u) * max|x| * max|y| + D * 2^-126,   u = 2^-24.

For a sum of D products, added in whatever order, with or without fused operations, |fl(x.y) - x.y| <= g_D
sum|x_d||y_d| with g_n = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, 3.1), and
sum|x_d||y_d| <= |x||y| (Cauchy-Schwarz). Rounding the float64 sum adds u|x||y|; the error of that sum and the rounding
of cutoffs less than two more; each product that underflows less than 2^-126. In bfloat16 the vectors x, y are first
rounded to x', y', which adds |x - x'||y| + |x'||y - y'|, and the product is rounded at the end, which adds 2^-8
|x'||y'| (1 + g_D).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

VECTORS_AT_ONCE = 1024  # converted to float64 together
CELLS = 1 << 22  # scores held, or keys sorted, together
U32, U16 = 2.0**-24, 2.0**-8  # half a unit in the last place of 1: float32, bfloat16
LOW32 = 0xFFFFFFFF
NO_KEY = (~0x7F800000) << 32  # the key of a score of -inf: below every candidate


@contextmanager
def quietly() -> Iterator[None]:
    """Suppress torch's warnings about sparse tensors and read-only arrays; also a decorator. Not thread-safe."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", message=".*not writable")  # a memory-mapped file
        yield


def exact_scores(rows: np.ndarray | Tensor, image: np.ndarray, panel: Tensor, column: np.ndarray) -> np.ndarray:
    """Score single pairs, (P,) float32. All scores of the package come from here.

    Args:
        rows: (N, D) vectors of the images, float32; or a float64 tensor of them, which is faster for many pairs.
        image: (P,) image of each pair; faster if equal ones are adjacent.
        panel: (C, D) the captions' vectors, float64.
        column: (P,) caption of each pair, as its place in the panel.
    """
    scores = np.empty(len(image), np.float32)
    if isinstance(rows, Tensor):
        order = _grouped(image)
        ends = np.append(0, np.cumsum(np.bincount(image, minlength=len(rows))))
        scores[order] = _products(ends, column[order], rows, panel)
        return scores + np.float32(0)  # + 0 turns -0.0 into 0.0
    starts = np.flatnonzero(np.diff(image, prepend=-1))  # of each run of pairs of one image
    held = torch.empty(min(VECTORS_AT_ONCE, len(starts)), rows.shape[1], dtype=torch.float64)
    for first in range(0, len(starts), VECTORS_AT_ONCE):
        some = starts[first : first + VECTORS_AT_ONCE]
        stop = starts[first + VECTORS_AT_ONCE] if first + VECTORS_AT_ONCE < len(starts) else len(image)
        pairs = slice(some[0], stop)
        vectors = held[: len(some)].copy_(torch.from_numpy(rows[image[some]]))
        scores[pairs] = _products(np.append(some, stop) - some[0], column[pairs], vectors, panel)
    return scores + np.float32(0)


def _products(ends: np.ndarray, column: np.ndarray, vectors: Tensor, panel: Tensor) -> np.ndarray:
    """Multiply vectors by columns of a panel: those from place ends[k] to ends[k + 1] by vector k."""
    rows, columns = (torch.from_numpy(numbers.astype(np.int64)) for numbers in (ends, column))
    zeros = torch.zeros(len(column), dtype=torch.float64)  # multiplied by beta, so not uninitialised
    size: Any = (len(vectors), len(panel))
    where = torch.sparse_csr_tensor(rows, columns, zeros, size, check_invariants=False)
    return torch.sparse.sampled_addmm(where, vectors, panel.T, beta=0.0).values().numpy()


def _grouped(query: np.ndarray) -> np.ndarray:
    """Return a stable order in which equal queries are adjacent."""
    return np.sort((query.astype(np.int64) << 32) | np.arange(len(query))) & LOW32  # faster than argsort


def screen_error(images: np.ndarray, texts: np.ndarray, dtype: torch.dtype) -> float:
    """Return eps, the maximal difference of a score screened in `dtype`, float32 or bfloat16, from the exact one."""
    size = images.shape[1]
    longest, lost = zip(*(_norms(vectors, dtype) for vectors in (images, texts)), strict=True)
    rounded = [norm + less for norm, less in zip(longest, lost, strict=True)]
    growth = (size + 4) * U32 / (1 - (size + 4) * U32)
    eps = growth * rounded[0] * rounded[1] + size * 2.0**-126
    if dtype == torch.bfloat16:
        eps += lost[0] * longest[1] + rounded[0] * lost[1] + U16 * rounded[0] * rounded[1] * (1 + growth)
    return 1.0001 * eps  # for the rounding of this computation


def _norms(vectors: np.ndarray, dtype: torch.dtype) -> tuple[float, float]:
    """Return the greatest norm, and the greatest norm of the rounding error in the screen's dtype."""
    longest = lost = 0.0
    for start in range(0, len(vectors), VECTORS_AT_ONCE):
        some = torch.from_numpy(vectors[start : start + VECTORS_AT_ONCE].astype(np.float64))
        longest = max(longest, some.norm(dim=1).max().item())
        if dtype != torch.float32:
            lost = max(lost, (some - some.to(dtype)).norm(dim=1).max().item())
    return longest, lost


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
    for queries, rows in _sorted_rows(query, keys, n_queries):
        found[queries, : rows.shape[1]] = rows[:, : -k - 1 : -1]
    return found


def kth_score(query: np.ndarray, keys: np.ndarray, n_queries: int, k: int) -> np.ndarray:
    """Return the score of each query's k-th greatest key, (n_queries,); -inf where there are fewer."""
    ordered = np.sort((query.astype(np.int64) << 32) + (keys >> 32))  # by query, then by score
    count = np.bincount(query, minlength=n_queries)
    enough = np.flatnonzero(count >= k)
    found = np.full(n_queries, NO_KEY)
    found[enough] = (ordered[np.cumsum(count)[enough] - k] - (enough << 32)) << 32
    return decode(found)[0]


def best_directly(
    queries: np.ndarray,
    candidates: np.ndarray,
    among: np.ndarray,
    positives: tuple[np.ndarray, np.ndarray],
    k: int,
    eps: float,
) -> np.ndarray:
    """Return the keys of each query's k best non-positives, (Q, k), best first, without guessed cutoffs.

    Args:
        queries: (Q, D), a few hundred at most.
        candidates: (N, D); may be memory-mapped.
        among: (A,) candidates to rank.
        positives: Pairs to leave out, as places in `queries` and in `among`.
        k: How many.
        eps: Bound of the error of a float32 product, or more.
    """
    best = np.full((len(queries), k), NO_KEY)  # (Q, k)
    vectors, exact_vectors = torch.from_numpy(queries), torch.from_numpy(queries.astype(np.float64))
    order = np.argsort(positives[1], kind="stable")
    query, place = positives[0][order], positives[1][order]
    step = max(1, CELLS // max(queries.shape))  # vectors, or scores, held at once
    for start in range(0, len(among), step):
        some = among[start : start + step]
        scores = torch.mm(torch.from_numpy(candidates[some]), vectors.T).numpy()  # (a, Q)
        known = slice(*np.searchsorted(place, (start, start + step)))
        scores[place[known] - start, query[known]] = -np.inf
        limit = np.maximum(decode(best[:, -1])[0], np.finfo(np.float32).min)  # (Q,)
        if k <= len(some):
            limit = np.maximum(limit, np.partition(np.ascontiguousarray(scores.T), -k, axis=1)[:, -k])
        row, column = np.nonzero(scores >= np.maximum(limit - np.float32(2 * eps), np.finfo(np.float32).min))
        exact = exact_scores(candidates, some[row], exact_vectors, column)
        found = best_keys(column, keys_of(exact, some[row]), len(queries), k)
        best = np.sort(np.concatenate([best, found], axis=1), axis=1)[:, : -k - 1 : -1]
    return best


def _sorted_rows(query: np.ndarray, keys: np.ndarray, n_queries: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield some queries at a time with their keys as rows, in ascending order, padded with NO_KEY in front."""
    order = _grouped(query)
    count = np.bincount(query, minlength=n_queries)
    ends = np.cumsum(count)
    at_once = max(1, CELLS // max(1, int(count.max(initial=0))))
    for first in range(0, n_queries, at_once):
        queries = slice(first, min(first + at_once, n_queries))
        some = count[queries]
        if not (width := int(some.max())):
            continue
        start = ends[first] - count[first]
        rows = np.full((len(some), width), NO_KEY)
        rows[np.arange(width) < some[:, None]] = keys[order[start : start + some.sum()]]
        rows.sort(axis=1)
        yield queries, rows
