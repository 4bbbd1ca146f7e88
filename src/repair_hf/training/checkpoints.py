"""Checkpoints of a training: what each records, which one to resume from, and the callbacks around the steps.

A checkpoint may be half-written, because its run was killed, or damaged; it is then left aside. Beside the Trainer's
files it holds what identifies its run (`RUN`), what the run has cost so far (`SPENT`), and digests of all files.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerState

from repair_hf.runtime.options import UserError
from repair_hf.runtime.own_files import intact, read_json
from repair_hf.runtime.run_folder import differences, write_atomically
from repair_hf.training.checkpoint_files import RUN, fault, seal
from repair_hf.training.config import RepairConfig
from repair_hf.training.sampling import OneCaptionPerImage

logger = logging.getLogger(__name__)

SPENT = "repair_spent.json"
MAX_LOGIT_SCALE = math.log(100)


@dataclass(frozen=True)
class Spent:
    """What the steps of a training took."""

    seconds: float = 0.0  # of the loop, evaluations and checkpoints included
    waited: float = 0.0  # the part of it between steps, waiting for data
    images: int = 0  # encoded by all processes together
    texts: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))


class LoopCallback(TrainerCallback):
    """Time the loop, start the sampler's epochs, bound a softmax loss's scale, and log before each checkpoint.

    After a resume, accelerate does not reach the sampler through the sharded batch sampler that skips batches.
    """

    def __init__(self, sampler: OneCaptionPerImage, *, bounds_scale: bool = True) -> None:
        self.sampler, self.bounds_scale = sampler, bounds_scale
        self.first_step = 0  # above 0 after a resume
        self._began = 0.0
        self._waits = _Waits(torch.device("cpu"))

    def spent(self, images: int, texts: int) -> Spent:
        """Return the cost since training began in this process, with the given numbers of encoded items."""
        return Spent(time.perf_counter() - self._began, self._waits.seconds(), images, texts)

    def on_train_begin(self, args, state, control, **kwargs):
        self.first_step, self._began = state.global_step, time.perf_counter()
        self._waits = (_WaitsOfGPU if args.device.type == "cuda" else _Waits)(args.device)

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.sampler.set_epoch(state.global_step // self.sampler.batches)

    def on_step_begin(self, args, state, control, **kwargs):
        self._waits.end()

    def on_optimizer_step(self, args, state, control, **kwargs):
        scale = kwargs["model"].logit_scale
        if self.bounds_scale and scale.requires_grad:
            scale.data.clamp_(max=MAX_LOGIT_SCALE)

    def on_step_end(self, args, state, control, **kwargs):
        self._waits.begin()
        self._log_before_a_checkpoint(args, control)

    def on_epoch_end(self, args, state, control, **kwargs):
        self._log_before_a_checkpoint(args, control)

    def on_log(self, args, state, control, **kwargs):
        self._waits.begin_anew()  # writing or evaluating after a step is not waiting

    on_save = on_evaluate = on_log

    def _log_before_a_checkpoint(self, args, control):
        """Log, because a resumed run would lose a mean that spans a checkpoint. `best` saves only after evaluation."""
        control.should_log |= control.should_save or (args.save_strategy == "best" and control.should_evaluate)


class Signature(TrainerCallback):
    """Write into each checkpoint which run it belongs to, the cost so far, and last the digests of all files."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_save(self, args, state, control, **kwargs):
        spent = self.trainer.spent()  # waits until every process has written its files
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            write_atomically(folder / SPENT, json.dumps(asdict(spent), indent=2) + "\n")
            write_atomically(folder / RUN, json.dumps(self.trainer.run, indent=2) + "\n")
            seal(folder)


class _Waits:
    """The time between the end of a step and the beginning of the next, by this process's clock.

    Work that is still pending on the device is awaited: it is not waiting for data.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._seconds = device, 0.0
        self._since: Any = None  # a time, or an event of the GPU

    def begin(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize()
        self._since = time.perf_counter()

    def begin_anew(self) -> None:
        """Restart the current wait, if there is one."""
        if self._since is not None:
            self.begin()

    def end(self) -> None:
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since

    def seconds(self) -> float:
        return self._seconds


class _WaitsOfGPU(_Waits):
    """The same by the clock of a GPU, which lags behind this process: from the end of a step until it gets new work.

    This process does not wait for the GPU, so the next batch is made meanwhile. The events are read later.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # not read yet

    def begin(self) -> None:
        self._since = _now()

    def begin_anew(self) -> None:
        self.seconds()  # logging has waited for the GPU anyway
        super().begin_anew()

    def end(self) -> None:
        if self._since is not None:
            self._spans.append((self._since, _now()))

    def seconds(self) -> float:
        for begin, end in self._spans:
            end.synchronize()
            self._seconds += begin.elapsed_time(end) / 1000
        self._spans.clear()
        return self._seconds


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def mean_loss(state: TrainerState, first_step: int, since: float) -> float:
    """Average the loss over all steps of a run: those before `first_step`, as logged, and the mean `since` then."""
    total, before = since * (state.global_step - first_step), 0.0
    for line in state.log_history:
        if "loss" in line and line["step"] <= first_step:  # the mean since the line before
            total += line["loss"] * (line["step"] - before)
            before = line["step"]
    return total / max(state.global_step, 1)


class WholeCheckpoint(str):
    """The folder of a checkpoint that was found whole, so its files need not be read again."""


def find_checkpoint(wanted: str | None, config: RepairConfig) -> WholeCheckpoint | None:
    """Resolve `resume_from_checkpoint` (a folder, `last` or None) to a folder, or to None to start anew.

    Raises:
        UserError: If the folder is not a whole checkpoint.
    """
    if wanted is None or isinstance(wanted, WholeCheckpoint):
        return wanted
    if wanted == "last":
        newest, aside = newest_checkpoint(str(config.output_dir), config.world_size)
        if aside and config.process_index == 0:
            faults = ", ".join(f"{path} ({why})" for path, why in aside.items())
            instead = "training starts anew" if newest is None else f"training resumes from {newest.name}"
            logger.warning("Left aside: %s; %s.", faults, instead)
        return None if newest is None else WholeCheckpoint(newest)
    if why := fault(Path(wanted), config.world_size):
        raise UserError(
            f"`resume_from_checkpoint` names {wanted}, which is not a whole checkpoint: {why}. "
            "Give a `checkpoint-...` folder, or `last`."
        )
    return WholeCheckpoint(wanted)


def spent_before(checkpoint: str | None) -> Spent:
    """Read what a run had cost at a checkpoint; nothing without one, or if another program wrote it."""
    path = Path(checkpoint or "") / SPENT
    if not checkpoint or not path.is_file():
        return Spent()
    with intact(path, "Delete this file, and run the command again"):
        return Spent(**read_json(path))


def newest_checkpoint(folder: str | Path, processes: int = 1) -> tuple[Path | None, dict[Path, str]]:
    """Find the whole checkpoint with the most steps in a run's folder, and what is wrong with each newer one.

    `processes` is the number for a checkpoint that does not record it, because its run was killed just before.
    """
    aside: dict[Path, str] = {}
    found = (path for path in Path(folder).glob("checkpoint-*") if _steps(path) >= 0)
    for path in sorted(found, key=_steps, reverse=True):
        if (why := fault(path, processes)) is None:
            return path, aside
        aside[path] = why
    return None, aside


def check_run(checkpoint: str | None, run: Mapping[str, Any]) -> None:
    """Raise a `UserError` if the last checkpoint is of another run, whose weights training would continue."""
    signature = Path(checkpoint or "") / RUN
    # Without it the run was killed just before; an older run would have left complete checkpoints.
    if checkpoint is None or not signature.is_file():
        return
    if changed := differences(read_json(signature), json.loads(json.dumps(run))):
        raise UserError(
            f"{checkpoint} is of another run: {changed}. Give another `output_dir`, delete its checkpoints to start "
            "anew, or set `resume_from_checkpoint` to this one to resume from it anyway."
        )


def _steps(path: Path) -> int:
    found = re.fullmatch(r"checkpoint-(\d+)", path.name)
    return int(found[1]) if found else -1
