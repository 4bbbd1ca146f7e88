"""Rank rows against columns in one pass over blocks of their scores, in little memory.

Blocks of scores come from fast products. With the eps of `scores.screen_error`, a pair with the screened score s

- is ahead of a target of score g if s >= g + eps, is not if s < g - eps, and is scored exactly in between;
- is none of a query's k best if s < (k-th best exact score so far) - eps, or if s < (k-th best s so far) - 2 eps.

The bounds only rise, so no candidate is missed. Blocks are strided samples: they rise early, also in a sorted
collection. Pairs above the bounds wait in a pool, and are scored exactly when the panel ends, or when the pool is
full, as with many ties.

Vectors may be on the CPU or a GPU; of a GPU only counts and the pairs that may matter come back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from repair_hf.mining.queries import Queries
from repair_hf.mining.scores import decode, exact_scores, keys_of, kth_score, screen_error
from repair_hf.runtime.progress import Progress

RUN = 16  # neighbouring columns of a panel: a memory-mapped file is read in pieces of this size
POOL = 1 << 20  # pairs that wait
LOWEST = np.finfo(np.float32).min  # above the -inf that marks positives
Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows, columns and screened scores


@dataclass(frozen=True)
class Matrix:
    """The N x M scores of rows and columns, cut into panels of columns and blocks of rows."""

    rows: np.ndarray  # (N, D) float32
    columns: np.ndarray  # (M, D) float32
    positives_of: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # columns to rows, and places in the columns
    block: int  # columns of a panel; half as many rows of a block

    @property
    def panels(self) -> list[np.ndarray]:
        """The columns of each panel: a strided sample of runs of neighbours."""
        run, count = min(RUN, self.block), math.ceil(len(self.columns) / self.block)
        starts = [np.arange(place * run, len(self.columns), count * run) for place in range(count)]
        panels = [(start[:, None] + np.arange(run)).ravel() for start in starts if len(start)]
        return [columns[columns < len(self.columns)] for columns in panels]


def screen(
    matrix: Matrix,
    panels: list[np.ndarray],
    rows: Queries,
    columns: Queries,
    workers: Executor,
    device: torch.device,
    *,
    show: bool,
) -> None:
    """Count what is ahead of each target, and keep the best non-positives, of all rows and of the panels' columns."""
    eps = screen_error(matrix.rows, matrix.columns)
    n_blocks = math.ceil(len(matrix.rows) / math.ceil(matrix.block / 2))
    vectors = torch.from_numpy(matrix.rows)
    blocks = [vectors[place::n_blocks].to(device) for place in range(n_blocks)]  # on the CPU the same memory

    def work(panel: np.ndarray) -> None:
        Panel(matrix, blocks, panel, rows, columns, eps).rank()

    title = "Ranking" if show else None
    for _ in Progress(workers.map(work, panels), title, total=len(panels), unit=" panels", delay=3):
        pass


class Side:
    """The bounds of one side's queries while a panel is screened."""

    def __init__(self, queries: Queries, eps: float, which: np.ndarray | slice = slice(None)) -> None:
        self.k, self.target = queries.k, queries.target[which]
        score, self.eps = decode(self.target)[0], np.float32(eps)
        self.low, self.high = score - self.eps, score + self.eps  # in between the exact score decides
        self.top = np.full(len(score), LOWEST if self.k else np.inf, np.float32)  # from which one may be of the k best
        self.raise_to(queries.kth_score(which) + self.eps)
        self.ahead = np.zeros(len(score), np.int64)

    def raise_to(self, kth: np.ndarray, which: np.ndarray | slice = slice(None)) -> None:
        """Raise the bound to the k-th best of some screened scores, less the error."""
        self.top[which] = np.maximum(self.top[which], kth - 2 * self.eps)

    def doubts(self, query: np.ndarray, score: np.ndarray) -> np.ndarray:
        """Whether only the exact score says if a pair, (P,), is ahead."""
        return (score >= self.low[query]) & (score < self.high[query])


class Panel:
    """A panel of columns that is screened against all rows."""

    def __init__(
        self, matrix: Matrix, blocks: list[Tensor], panel: np.ndarray, rows: Queries, columns: Queries, eps: float
    ) -> None:
        self.matrix, self.blocks, self.panel, self.columns = matrix, blocks, panel, matrix.columns[panel]
        self.queries = rows, columns
        with rows.lock:
            self.row = Side(rows, eps)
        self.column = Side(columns, eps, panel)

    def rank(self) -> None:
        """Add what the panel holds to the queries of both sides."""
        pool: list[Pairs] = []
        for block, scores in enumerate(self.screened()):
            rows = np.arange(block, len(self.matrix.rows), len(self.blocks))
            if block == 0:
                self.column.raise_to(self.about_the_best(scores.T, self.column.k))
            if len(bare := np.flatnonzero(self.row.top[rows] <= LOWEST)):
                self.row.raise_to(self.about_the_best(scores[bare], self.row.k), rows[bare])
            row, column, score = self.candidates(scores, rows)
            pool.append((rows[row], column, score))
            if block & (block + 1) == 0 or sum(len(score) for *_, score in pool) > POOL:
                pool = [self._still_needed(pool)]
                if len(pool[0][0]) > POOL:
                    self._settle(pool.pop())
        if pool:
            self._settle(self._still_needed(pool))
        of_rows, of_columns = self.queries
        of_columns.ahead[self.panel] = self.column.ahead
        with of_rows.lock:
            of_rows.ahead += self.row.ahead

    def positives(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the positives, (P,) places in their block and in the panel, and where each block's begin and end."""
        row, column = self.matrix.positives_of(self.panel)
        n_blocks = len(self.blocks)
        order = np.argsort(row % n_blocks, kind="stable")
        ends = np.searchsorted(row[order] % n_blocks, np.arange(n_blocks + 1))
        return row[order] // n_blocks, column[order], ends

    def screened(self) -> Iterator[Tensor]:
        """Yield the screened scores of each block of rows, (r, C), -inf where positive; all share one buffer."""
        row, column, ends = self.positives()
        where = self.blocks[0].device
        at_row, at_column = (torch.from_numpy(place).to(where) for place in (row, column))
        panel = torch.from_numpy(self.columns).to(where).T
        products = self.blocks[0].new_empty(len(self.blocks[0]), len(self.panel))
        hidden = torch.tensor(-np.inf, device=where)
        for block, start, stop in zip(self.blocks, ends, ends[1:], strict=False):
            scores = torch.mm(block, panel, out=products[: len(block)])
            yield scores.index_put_((at_row[start:stop], at_column[start:stop]), hidden)

    def candidates(self, scores: Tensor, rows: np.ndarray) -> Pairs:
        """Count the pairs of a block that are certainly ahead; return those that may matter, with places in `rows`."""
        sides = ((self.row, rows), (self.column, np.arange(scores.shape[1])))
        bounds = [
            torch.from_numpy(np.stack([side.low[query], side.high[query], side.top[query]])).to(scores.device)
            for side, query in sides
        ]
        of_row, of_column = (torch.minimum(low, top) for low, _, top in bounds)
        place = ((scores >= of_row[:, None]) | (scores >= of_column)).flatten().nonzero()[:, 0]
        row, column, score = place // scores.shape[1], place % scores.shape[1], scores.flatten()[place]
        stays = torch.zeros_like(score, dtype=torch.bool)
        for (side, query), at, of_side in zip(sides, (row, column), bounds, strict=True):
            low, high, top = of_side[:, at]
            is_ahead = score >= high
            side.ahead[query] += torch.bincount(at[is_ahead], minlength=len(query)).cpu().numpy()
            stays |= (score >= top) | (score >= low) & ~is_ahead
        return row[stays].cpu().numpy(), column[stays].cpu().numpy(), score[stays].cpu().numpy()

    def about_the_best(self, scores: Tensor, k: int) -> np.ndarray:
        """At most the k-th best score of each row, and close to it: (q, c) to (q,)."""
        width = scores.shape[1]
        if not 0 < k <= width:
            return np.full(len(scores), LOWEST)
        if k < width // 64:  # sort the best of every eight instead of all
            scores = scores[:, : width // 8 * 8].unflatten(1, (8, -1)).amax(1)
        return scores.topk(k, sorted=False).values.amin(1).cpu().numpy()

    def _still_needed(self, pool: list[Pairs]) -> Pairs:
        """Raise the columns' bound, and keep the pairs that may still matter."""
        row, column, score = (np.concatenate(part) for part in zip(*pool, strict=True))
        if self.column.k:
            self.column.raise_to(kth_score(column, score, len(self.panel), self.column.k))
        stays = (score >= self.row.top[row]) | (score >= self.column.top[column])
        stays |= self.row.doubts(row, score) | self.column.doubts(column, score)
        return row[stays], column[stays], score[stays]

    def _settle(self, pairs: Pairs) -> None:
        """Score pairs exactly, count those that were in doubt, and keep the best."""
        row, column, screened = pairs
        score = exact_scores(self.matrix.rows, row, self.columns, column)
        sides = (
            (self.row, self.queries[0], row, row, self.panel[column]),
            (self.column, self.queries[1], column, self.panel[column], row),
        )
        for side, queries, place, query, candidate in sides:
            keys = keys_of(score, candidate)
            is_ahead = side.doubts(place, screened) & (keys > side.target[place])
            side.ahead += np.bincount(place[is_ahead], minlength=len(side.ahead))
            if side.k:
                best = screened >= side.top[place]
                queries.offer(query[best], keys[best])
        self.column.raise_to(self.queries[1].kth_score(self.panel) + self.column.eps)
