"""Rank rows against columns in one pass over blocks of their scores, in little memory.

Blocks of scores come from fast products. With an eps of `scores.screen_errors`, a pair with the screened score s

- is ahead of a target of score g if s >= g + eps, is not if s < g - eps, and is scored exactly in between;
- is none of a query's k best if s < (k-th best exact score so far) - eps, or if s < (k-th best s so far) - 2 eps.

The bounds only rise, so no candidate is missed. Blocks are strided samples: they rise early, also in a sorted
collection. Pairs above the bounds wait in a pool, and are scored exactly when the panel ends, or when the pool is
full, as with many ties.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor
from functools import cache
from time import perf_counter

import numpy as np
import torch

from repair_hf.mining.device_panels import DevicePanel
from repair_hf.mining.panels import Matrix, Panel
from repair_hf.mining.queries import Queries
from repair_hf.mining.scores import decode, screen_errors
from repair_hf.runtime.progress import Progress

TRIAL = (256, 512)  # rows and columns of the block on which precisions are compared
EXACT_SECONDS = 4e-7  # to score a pair exactly
KINDS = {"cpu": Panel, "cuda": DevicePanel}


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
    dtype, eps = precision(matrix, rows, columns, device)
    n_blocks = math.ceil(len(matrix.rows) / math.ceil(matrix.block / 2))
    every, vectors = range(n_blocks), torch.from_numpy(matrix.rows)
    blocks = [vectors[place::n_blocks].to(device, dtype) for place in every]  # float32 on the CPU: the same memory

    def work(panel: np.ndarray) -> None:
        KINDS[device.type](matrix, blocks, panel, rows, columns, eps).rank()

    title = "Ranking" if show else None
    for _ in Progress(workers.map(work, panels), title, total=len(panels), unit=" panels", delay=3):
        pass


def precision(matrix: Matrix, rows: Queries, columns: Queries, device: torch.device) -> tuple[torch.dtype, float]:
    """Choose float32 or bfloat16 by what a pair costs on this machine; return it with its error bound.

    bfloat16 leaves more pairs in doubt, which are scored exactly; how many, a small block shows. An accelerator's
    bfloat16 has no bound.
    """
    errors = screen_errors(matrix.rows, matrix.columns)
    if device.type != "cpu":
        return torch.float32, errors[torch.float32]
    row, column = (
        np.arange(0, len(vectors), -(-len(vectors) // some))
        for vectors, some in zip((matrix.rows, matrix.columns), TRIAL, strict=True)
    )
    scores = matrix.rows[row] @ matrix.columns[column].T
    targets = decode(rows.target[row])[0][:, None], decode(columns.target[column])[0]

    def seconds(dtype: torch.dtype, eps: float) -> float:
        doubts = sum((np.abs(scores - target) <= eps).mean() for target in targets)
        return product_seconds(dtype, matrix.rows.shape[1]) + doubts * EXACT_SECONDS

    return min(errors.items(), key=lambda one: seconds(*one))


@cache
def product_seconds(dtype: torch.dtype, dim: int) -> float:
    """Measure the seconds that a product takes for each pair, on one thread."""
    rows, columns = (torch.full((some, dim), 0.1, dtype=dtype) for some in TRIAL)
    times = []
    for _ in range(4):  # the first prepares the kernel
        start = perf_counter()
        torch.mm(rows, columns.T)
        times.append(perf_counter() - start)
    return min(times) / math.prod(TRIAL)
