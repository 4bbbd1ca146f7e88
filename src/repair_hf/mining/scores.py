"""Exact scores of pairs, and scores with candidates as sortable integers.

A score is a dot product of float32 vectors, summed in float64 and rounded to float32. It is computed pair by pair: it
does not depend on what else is scored with it, and equal vectors have equal scores.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROWS_AT_ONCE = 1024  # vectors converted to float64 together
COLUMNS_AT_ONCE = 2048  # columns whose pairs are scored together
PAIRS_ON_DEVICE = 1 << 14  # scored together: about 200 MB a thread, at 512 numbers a vector
CELLS = 1 << 22  # keys sorted together
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
    """Score P distinct pairs of a row and a column, (P,) float32.

    Shape:
        rows: (N, D) float32, may be memory-mapped. columns: (M, D). row, column: (P,) the vectors of each pair.
    """
    scores, panels = np.empty(len(row), np.float32), column // COLUMNS_AT_ONCE
    order = np.argsort(panels.astype(np.int64) * len(rows) + row, kind="stable")  # by panel, then by row
    row, column = row[order], column[order]
    ends = np.searchsorted(panels[order], np.arange(len(columns) // COLUMNS_AT_ONCE + 2))
    for panel in np.flatnonzero(np.diff(ends)):
        start, stop = ends[panel : panel + 2]
        first_column = panel * COLUMNS_AT_ONCE
        panel64 = torch.from_numpy(columns[first_column : first_column + COLUMNS_AT_ONCE].astype(np.float64))
        row_starts = np.append(start + np.flatnonzero(np.diff(row[start:stop], prepend=-1)), stop)
        for first in range(0, len(row_starts) - 1, ROWS_AT_ONCE):
            ends_of_rows = row_starts[first : first + ROWS_AT_ONCE + 1]
            pairs = slice(ends_of_rows[0], ends_of_rows[-1])
            rows64 = torch.from_numpy(rows[row[ends_of_rows[:-1]]].astype(np.float64))
            products = _products(ends_of_rows - ends_of_rows[0], column[pairs] - first_column, rows64, panel64)
            scores[order[pairs]] = products
    return scores + np.float32(0)  # + 0 turns -0.0 into 0.0


def _products(ends: np.ndarray, column: np.ndarray, rows: Tensor, panel: Tensor) -> np.ndarray:
    """Multiply rows by columns of a panel: those from place ends[k] to ends[k + 1] by row k."""
    row_ends, columns = (torch.from_numpy(numbers.astype(np.int64)) for numbers in (ends, column))
    zeros = torch.zeros(len(column), dtype=torch.float64)  # multiplied by beta, so not uninitialised
    size: Any = (len(rows), len(panel))
    pairs = torch.sparse_csr_tensor(row_ends, columns, zeros, size, check_invariants=False)
    return torch.sparse.sampled_addmm(pairs, rows, panel.T, beta=0.0).values().numpy()


def exact_scores_on_device(rows: Tensor, row: np.ndarray, columns: Tensor, column: np.ndarray) -> np.ndarray:
    """Score pairs as `exact_scores` does, where the vectors are, such as on a GPU; only the scores leave it.

    The products are exact in float64. They are added in halves, in the same order on every device.
    """
    row_index, column_index = (torch.from_numpy(index).to(rows.device) for index in (row, column))
    scores = torch.empty(len(row), dtype=torch.float64, device=rows.device)
    for start in range(0, len(row), PAIRS_ON_DEVICE):
        pairs = slice(start, start + PAIRS_ON_DEVICE)
        products = rows[row_index[pairs]].double() * columns[column_index[pairs]]  # (p, D)
        while products.shape[1] > 1:
            if products.shape[1] % 2:
                products = torch.nn.functional.pad(products, (0, 1))
            first_half, second_half = products.chunk(2, dim=1)
            products = first_half + second_half
        scores[pairs] = products[:, 0]
    return scores.float().cpu().numpy() + np.float32(0)


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
    best = np.full((n_queries, k), NO_KEY)
    order = np.sort((query.astype(np.int64) << 32) | np.arange(len(query))) & LOW32  # faster than argsort
    counts = np.bincount(query, minlength=n_queries)
    ends = np.cumsum(counts)
    at_once = max(1, CELLS // max(1, int(counts.max(initial=0))))
    for first in range(0, n_queries, at_once):
        count = counts[first : first + at_once]
        start = ends[first] - counts[first]
        table = np.full((len(count), int(count.max())), NO_KEY)  # (queries, keys)
        table[np.arange(table.shape[1]) < count[:, None]] = keys[order[start : start + count.sum()]]
        table.sort(axis=1)
        best[first : first + at_once, : table.shape[1]] = table[:, : -k - 1 : -1]
    return best


def kth_score(query: np.ndarray, score: np.ndarray, n_queries: int, k: int) -> np.ndarray:
    """Return each query's k-th greatest score, (n_queries,); -inf where there are fewer."""
    ordered = np.sort((query.astype(np.int64) << 32) + (keys_of(score) >> 32))  # by query, then by score
    count = np.bincount(query, minlength=n_queries)
    has_k = np.flatnonzero(count >= k)
    kth = np.full(n_queries, NO_KEY)
    kth[has_k] = (ordered[np.cumsum(count)[has_k] - k] - (has_k << 32)) << 32
    return decode(kth)[0]
