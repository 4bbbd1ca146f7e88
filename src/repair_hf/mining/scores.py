"""Score pairs exactly, and say how far a quick product can lie from that.

In:  float32 vectors and pairs of them.
Out: their scores; the bound of a screen's error; scores and candidates as integers that sort as they rank.

**A score** is a dot product of float32 vectors, summed in float64 and rounded to float32. It comes from one function,
`exact_scores`, pair by pair: it does not depend on what else is scored with it, and equal vectors score alike.

**A screen** is a float32 product of whole blocks. It differs from the score by at most

    eps = (D + 4) u / (1 - (D + 4) u) * max|x| * max|y| + D * 2^-126,   u = 2^-24.

For a sum of D products, added in whatever order, with or without fused operations, |fl(x.y) - x.y| <= g_D sum|x_d||y_d| with
g_n = n u / (1 - n u) (Higham, Accuracy and Stability of Numerical Algorithms, 3.1), and sum|x_d||y_d| <= |x||y|
(Cauchy-Schwarz). Rounding the float64 sum adds u|x||y|; the error of that sum and the rounding of thresholds less than two
more; each product that underflows less than 2^-126. In bfloat16 the vectors x, y are first rounded to x', y', which adds
|x - x'||y| + |x'||y - y'|, and the product is rounded at the end, which adds 2^-8 |x'||y'| (1 + g_D).

So a pair that screens at s scores within [s - eps, s + eps].
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

AT_ONCE = 1024  # vectors that are scored exactly, or measured, together
CELLS = 1 << 22  # scores that are held, or keys that are sorted, together
U32, U16 = 2.0**-24, 2.0**-8  # half a unit in the last place of 1: float32, bfloat16
LOW32 = 0xFFFFFFFF
NO_KEY = (~0x7F800000) << 32  # that of a score of -inf: below every candidate


@contextmanager
def quietly() -> Iterator[None]:
    """Without torch's warnings of what is no news to whoever has something scored; also a decorator. Not in threads."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", message=".*not writable")  # a mapped file; nothing is written to it
        yield


def exact_scores(rows: np.ndarray | Tensor, image: np.ndarray, panel: Tensor, column: np.ndarray) -> np.ndarray:
    """Scores of single pairs; the only place where a score comes from.

    Args:
        rows: (N, D) vectors of the images, float32; or a float64 tensor of them, which spares many pairs the copying.
        image: (P,) image of each pair; equal ones should stand side by side, for speed.
        panel: (C, D) the captions' vectors, float64.
        column: (P,) caption of each pair, as its place in the panel.

    Returns:
        (P,) float32.
    """
    scores = np.empty(len(image), np.float32)
    if isinstance(rows, Tensor):
        order = _grouped(image)
        ends = np.append(0, np.cumsum(np.bincount(image, minlength=len(rows))))
        scores[order] = _products(ends, column[order], rows, panel)
        return scores + np.float32(0)  # + 0 makes of -0.0 the 0.0 that it equals
    starts = np.flatnonzero(np.diff(image, prepend=-1))  # of each run of pairs of one image
    held = torch.empty(min(AT_ONCE, len(starts)), rows.shape[1], dtype=torch.float64)
    for first in range(0, len(starts), AT_ONCE):
        some = starts[first : first + AT_ONCE]
        stop = starts[first + AT_ONCE] if first + AT_ONCE < len(starts) else len(image)
        pairs = slice(some[0], stop)
        vectors = held[: len(some)].copy_(torch.from_numpy(rows[image[some]]))
        scores[pairs] = _products(np.append(some, stop) - some[0], column[pairs], vectors, panel)
    return scores + np.float32(0)


def _products(ends: np.ndarray, column: np.ndarray, vectors: Tensor, panel: Tensor) -> np.ndarray:
    """Of vectors with columns of a panel: those between the first and the second end are the first vector's, and so on."""
    indices = (torch.from_numpy(numbers.astype(np.int64)) for numbers in (ends, column))
    zeros = torch.zeros(len(column), dtype=torch.float64)  # multiplied by beta: 0, and not whatever lies there
    where = torch.sparse_csr_tensor(*indices, zeros, (len(vectors), len(panel)), check_invariants=False)
    return torch.sparse.sampled_addmm(where, vectors, panel.T, beta=0.0).values().numpy()


def _grouped(query: np.ndarray) -> np.ndarray:
    """The order in which equal queries stand side by side, those of each as they came."""
    return np.sort((query.astype(np.int64) << 32) | np.arange(len(query))) & LOW32  # faster than argsort


def screen_error(images: np.ndarray, texts: np.ndarray, dtype: torch.dtype) -> float:
    """eps: how far a screened score can lie from the exact one.

    Args:
        images: (N, D); may be memory-mapped.
        texts: (M, D); may be memory-mapped.
        dtype: Of the screen: float32 or bfloat16.
    """
    size = images.shape[1]
    longest, lost = zip(*(_norms(vectors, dtype) for vectors in (images, texts)), strict=True)
    rounded = [norm + less for norm, less in zip(longest, lost, strict=True)]
    growth = (size + 4) * U32 / (1 - (size + 4) * U32)
    eps = growth * rounded[0] * rounded[1] + size * 2.0**-126
    if dtype == torch.bfloat16:
        eps += lost[0] * longest[1] + rounded[0] * lost[1] + U16 * rounded[0] * rounded[1] * (1 + growth)
    return 1.0001 * eps  # of this very computation


def _norms(vectors: np.ndarray, dtype: torch.dtype) -> tuple[float, float]:
    """The greatest norm, and the greatest norm of what a vector loses by the screen's rounding."""
    longest = lost = 0.0
    for start in range(0, len(vectors), AT_ONCE):
        some = torch.from_numpy(vectors[start : start + AT_ONCE].astype(np.float64))
        longest = max(longest, some.norm(dim=1).max().item())
        if dtype != torch.float32:
            lost = max(lost, (some - some.to(dtype)).norm(dim=1).max().item())
    return longest, lost


def keys_of(score: np.ndarray, candidate: np.ndarray | int = 0) -> np.ndarray:
    """Scores and candidates, (P,) each, as integers in their order; of equal scores the lower candidate is the greater key."""
    bits = score.view(np.int32).astype(np.int64)
    return (np.where(bits < 0, bits ^ 0x7FFFFFFF, bits) << 32) | (LOW32 - np.asarray(candidate, np.int64))


def decode(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys to scores and candidates; -1 where there is none."""
    ascending = keys >> 32
    score = np.where(ascending < 0, ascending ^ 0x7FFFFFFF, ascending).astype(np.int32).view(np.float32)
    return score, np.where(keys > NO_KEY, LOW32 - (keys & LOW32), -1)


def best_keys(query: np.ndarray, keys: np.ndarray, n_queries: int, k: int) -> np.ndarray:
    """Each query's k greatest keys, best first: (P,), (P,) to (n_queries, k); NO_KEY where there are fewer."""
    found = np.full((n_queries, k), NO_KEY)
    for queries, rows in _rows(query, keys, n_queries):
        found[queries, : rows.shape[1]] = rows[:, : -k - 1 : -1]
    return found


def kth_score(query: np.ndarray, keys: np.ndarray, n_queries: int, k: int) -> np.ndarray:
    """The score of each query's k-th greatest key, (n_queries,); -inf where there are fewer."""
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
    """The keys of each query's k best non-positives, without guessing: (Q, k), best first.

    Args:
        queries: (Q, D), a few hundred at most; a part of their scores, and k best of two parts, are held at once.
        candidates: (N, D) all there are; may be memory-mapped.
        among: (A,) which of them count.
        positives: Pairs that do not, as places in `queries` and in `among`.
        k: How many.
        eps: Bound of the error of a float32 product, or more.
    """
    best = np.full((len(queries), k), NO_KEY)  # (Q, k)
    vectors, exact_vectors = torch.from_numpy(queries), torch.from_numpy(queries.astype(np.float64))
    order = np.argsort(positives[1], kind="stable")
    query, place = positives[0][order], positives[1][order]
    step = max(1, CELLS // max(queries.shape))  # as many vectors, or scores, as are held at once
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


def _rows(query: np.ndarray, keys: np.ndarray, n_queries: int) -> Iterator[tuple[slice, np.ndarray]]:
    """Each query's keys as a row, ascending, behind NO_KEYs; some queries at a time."""
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
