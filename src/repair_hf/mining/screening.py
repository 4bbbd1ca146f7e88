"""Rank rows against columns in one pass over blocks of their scores, in little memory.

Blocks of scores come from fast products. With the eps of `scores.screen_error`, a pair with the screened score s

- is ahead of a target of score g if s >= g + eps, is not if s < g - eps, and is scored exactly in between;
- is none of a query's k best if s < (k-th best exact score so far) - eps, or if s < (k-th best s so far) - 2 eps.

The bounds only rise, so no candidate is missed. Blocks are strided samples: they rise early, also in a sorted
collection. Pairs above the bounds wait in a pool, and are scored exactly when the panel ends, or when the pool is
full, as with many ties.
"""

from __future__ import annotations

import math
from concurrent.futures import Executor

import numpy as np
import torch

from repair_hf.mining.device_panels import DevicePanel
from repair_hf.mining.panels import Matrix, Panel
from repair_hf.mining.queries import Queries
from repair_hf.mining.scores import screen_error
from repair_hf.runtime.progress import Progress

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
    eps = screen_error(matrix.rows, matrix.columns)
    n_blocks = math.ceil(len(matrix.rows) / math.ceil(matrix.block / 2))
    vectors = torch.from_numpy(matrix.rows)
    blocks = [vectors[place::n_blocks].to(device) for place in range(n_blocks)]  # on the CPU the same memory

    def work(panel: np.ndarray) -> None:
        KINDS[device.type](matrix, blocks, panel, rows, columns, eps).rank()

    title = "Ranking" if show else None
    for _ in Progress(workers.map(work, panels), title, total=len(panels), unit=" panels", delay=3):
        pass
