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

from repair_hf.runtime.options import UserError

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

        state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU") or is_launched_on_cpu())
        self.count: int = state.num_processes
        check_launch(self.count)
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

    def share(self, n: int, piece: int = 1) -> slice:
        """Which of `n` things in order are this process's, cut between pieces of so many."""
        pieces = -(-n // piece)
        first, stop = (piece * (pieces * index // self.count) for index in (self.index, self.index + 1))
        return slice(min(first, n), min(stop, n))

    def gather(self, value: T) -> list[T]:
        """What each process has to say, in their order. Everybody waits for everybody."""
        if self.count == 1:
            return [value]
        import torch.distributed

        said = [None] * self.count
        torch.distributed.all_gather_object(said, value, group=self._group)
        return said


def is_launched_on_cpu() -> bool:
    """Whether this is one of several processes without an accelerator.

    The libraries have to be told that the CPU is meant: else they take each of these processes for the only one.
    """
    import torch

    return _started() > 1 and not torch.accelerator.is_available()


def check_launch(count: int) -> None:
    """Refuse to work as another number of processes than was asked for, such as two that each do the whole.

    Args:
        count: How many know of one another.

    Raises:
        UserError: If the launcher was asked for, or has started, another number.
    """
    started = _started()
    if started != count:
        raise UserError(f"The launcher started {started} processes, and they run as {count}. {_REMEDY}")
    # `accelerate launch --cpu --num_processes 2` names a meeting point, and starts one process that meets nobody.
    is_accelerate, is_told_to_meet = "ACCELERATE_MIXED_PRECISION" in os.environ, "MASTER_PORT" in os.environ
    if count == 1 and is_accelerate and is_told_to_meet and "WORLD_SIZE" not in os.environ:
        raise UserError(f"`accelerate launch` was asked for several processes and started one. {_REMEDY}")


def refuse_several(command: str) -> None:
    """Refuse to be one of several processes.

    Args:
        command: That types other commands one after the other.

    Raises:
        UserError: If a launcher has started more than this one.
    """
    if _started() > 1:
        raise UserError(
            f"`repair-hf {command}` runs its stages one after the other in one process, and the launcher started {_started()}. Run it "
            "without a launcher; or launch the stages that share their work, `synthesize` and `train`, each by itself."
        )


_REMEDY = (
    "Use `accelerate launch --config_file` with a file of recipes/accelerate (cpu-2.yaml starts two on the CPU), or "
    "`torchrun --nproc_per_node`."
)


def _started() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


@cache
def processes() -> Processes:
    """The processes of this run; they meet at the first call."""
    return Processes()
