"""Rows of all processes in one tensor, with their exact gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _Gather(torch.autograd.Function):
    """Concatenate; backward, a process gets the sum of what all processes ask of its rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


def gather(rows: Tensor) -> Tensor:
    """Concatenate the rows of all processes, as many each, and keep their gradient."""
    is_alone = not dist.is_initialized() or dist.get_world_size() == 1
    return rows if is_alone else _Gather.apply(rows.contiguous())
