"""Rows of all processes together, with their gradient: so the negatives of one process are those of every other.

In:  rows of this process; every process has as many.
Out: the rows of all, in the order of the processes.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


class _Gather(torch.autograd.Function):
    """Rows of all processes, in their order. Backward: the sum of what all processes send to this one's rows."""

    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


def gather(rows: Tensor) -> Tensor:
    """Every process then computes the whole loss, and the mean of the processes' gradients is its exact gradient."""
    is_alone = not dist.is_initialized() or dist.get_world_size() == 1
    return rows if is_alone else _Gather.apply(rows)
