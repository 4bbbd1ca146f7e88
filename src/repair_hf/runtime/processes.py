"""The processes of a run: one, or those that `accelerate launch` or `torchrun` started.

They share a file system. Otherwise they exchange only small objects, through the CPU.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import os
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

from repair_hf.runtime.options import UserError

PATIENCE = timedelta(weeks=4)  # a process that is done waits for the others, which may take days

T = TypeVar("T")


class Processes:
    """The processes of this run. Use `processes()`: every process must create its own, because they meet here."""

    def __init__(self) -> None:
        import torch.distributed
        from accelerate import PartialState
        from accelerate.utils import parse_flag_from_env  # seen with accelerate 1.15

        state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU") or is_launched_on_cpu())
        self.count: int = state.num_processes
        check_launch(self.count)
        self.index: int = state.process_index
        self.device: torch.device = state.device
        self._group: Any = None
        if self.count > 1:
            self._group = torch.distributed.new_group(backend="gloo", timeout=PATIENCE)
            atexit.register(self._disconnect)

    @property
    def is_main(self) -> bool:
        """True in one process: the one that prints, and writes what is written once."""
        return self.index == 0

    def owns(self, name: str) -> bool:
        """Return whether work of this name belongs to this process. Each name belongs to exactly one."""
        return int(hashlib.sha256(name.encode()).hexdigest(), 16) % self.count == self.index

    def share(self, n: int, piece: int = 1) -> slice:
        """Return which of `n` items in order belong to this process; pieces of `piece` items stay together."""
        pieces = -(-n // piece)
        first, stop = (piece * (pieces * index // self.count) for index in (self.index, self.index + 1))
        return slice(min(first, n), min(stop, n))

    def gather(self, value: T) -> list[T]:
        """Return the value of each process, in their order. Every process waits for all others."""
        if self.count == 1:
            return [value]
        import torch.distributed

        gathered: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(gathered, value, group=self._group)
        return gathered

    def _disconnect(self) -> None:
        """Close all process groups, and end the threads of this one.

        A thread of gloo that still frees a tensor while the interpreter exits aborts the process. Only the last
        reference to a group joins its threads.
        """
        import torch.distributed

        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        self._group = None
        gc.collect()  # a trained model in a cycle holds the other group


def is_launched_on_cpu() -> bool:
    """Return whether this is one of several processes on a machine without an accelerator.

    transformers and accelerate must then be set to the CPU; otherwise each process takes itself for the only one.
    """
    import torch

    return _started() > 1 and not torch.accelerator.is_available()


def check_launch(count: int) -> None:
    """Check that as many processes as the launcher started know each other, which is `count`.

    Raises:
        UserError: If the launcher started, or was asked for, another number: each would then do the whole work.
    """
    started = _started()
    if started != count:
        raise UserError(f"The launcher started {started} processes, but they see {count}. {_REMEDY}")


def refuse_several(command: str) -> None:
    """Raise a `UserError` if a launcher started a command that runs other commands one after the other."""
    if _started() > 1:
        raise UserError(
            f"`repair-hf {command}` runs its stages one after the other in one process, and the launcher started "
            f"{_started()}. Run it without a launcher, or launch stages such as `synthesize` and `train` one by one."
        )


def is_first() -> bool:
    """Return whether this is the process that prints and writes, without meeting the others."""
    return _started() == 1 or os.environ.get("RANK", "0") == "0"  # set by launchers


_REMEDY = (
    "Use `accelerate launch --config_file` with a file of recipes/accelerate (cpu-2.yaml starts two on the CPU), or "
    "`torchrun --nproc_per_node`."
)


def _started() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


@cache
def processes() -> Processes:
    """Return the processes of this run; the first call waits until all have called it."""
    return Processes()
