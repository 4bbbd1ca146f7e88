"""The processes of a run: one, or as many as `accelerate launch` or `torchrun` started.

In:  what the launcher left in the environment.
Out: who this process is, which part of the work is its own, and what the others have to say.

The processes share a file system; beyond that they only exchange a few words, through the CPU.
"""

from __future__ import annotations

import hashlib
import os
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

PATIENCE = timedelta(weeks=4)  # a process whose part is done waits for the others, and theirs may take days

T = TypeVar("T")


class Processes:
    """The processes of this run. All of them must make it, for it makes them meet; see `processes`.

    Attributes:
        count: How many there are.
        index: Which one this is, from 0.
        device: Where this one computes: an accelerator of its own, if there is one.
    """

    def __init__(self) -> None:
        import torch.distributed
        from accelerate import PartialState
        from accelerate.utils import parse_flag_from_env

        # Without an accelerator it would take each process for the only one, unless it is told that the CPU is meant.
        is_launched = int(os.environ.get("WORLD_SIZE", 1)) > 1
        on_cpu = parse_flag_from_env("ACCELERATE_USE_CPU") or (is_launched and not torch.accelerator.is_available())
        state = PartialState(cpu=on_cpu)
        self.count: int = state.num_processes
        self.index: int = state.process_index
        self.device: torch.device = state.device
        self._group: Any = None
        if self.count > 1:
            self._group = torch.distributed.new_group(backend="gloo", timeout=PATIENCE)

    @property
    def is_main(self) -> bool:
        """True in one of them: the one that writes what is written once."""
        return self.index == 0

    def owns(self, name: str) -> bool:
        """Whether work of this name is this process's. Every name belongs to one, whatever else there is to do."""
        return int(hashlib.sha256(name.encode()).hexdigest(), 16) % self.count == self.index

    def gather(self, value: T) -> list[T]:
        """What each process has to say, in their order. Everybody waits for everybody."""
        if self.count == 1:
            return [value]
        import torch.distributed

        said = [None] * self.count
        torch.distributed.all_gather_object(said, value, group=self._group)
        return said


@cache
def processes() -> Processes:
    """The processes of this run; they meet at the first call."""
    return Processes()
