"""Checkpoints of a training: which one to resume from, and the callback around the steps.

Beside the Trainer's files a checkpoint holds `SEAL`, written last: what identifies its run, and the digests of all
other files. A checkpoint is whole if these match. Another one, whose run was killed while it was written, is left
aside.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerState

from repair_hf.runtime.options import UserError
from repair_hf.runtime.own_files import read_json
from repair_hf.runtime.run_folder import differences, write_atomically
from repair_hf.training.config import RepairConfig
from repair_hf.training.sampling import OneCaptionPerImage
from repair_hf.training.step import MAX_LOGIT_SCALE

logger = logging.getLogger(__name__)

SEAL = "repair_run.json"


class LoopCallback(TrainerCallback):
    """Start the sampler's epochs, time the loop, bound a softmax loss's scale, and seal checkpoints.

    Args:
        trainer: Has `sampler`, `base` (the dual encoder), `run` (what identifies it) and `accelerator`.
        bounds_scale: Whether the logit scale is at most 100.
    """

    def __init__(self, trainer: Any, *, bounds_scale: bool) -> None:
        self.trainer, self.bounds_scale = trainer, bounds_scale
        self.began = self.before = self.waited = 0.0
        self._since: float | None = None  # the end of the last step

    @property
    def seconds(self) -> float:
        """Seconds of the run's loop, evaluations and checkpoints and those before a resume included."""
        return self.before + time.perf_counter() - self.began

    @property
    def waiting(self) -> float:
        """The fraction of the seconds in this process in which it made the next batch."""
        return self.waited / (self.seconds - self.before)

    def on_train_begin(self, args, state, control, **kwargs):
        # a checkpoint is saved after a log, see `on_step_end`
        self.before = max((line.get("seconds", 0.0) for line in state.log_history), default=0.0)
        self.began, self.waited, self._since = time.perf_counter(), 0.0, None

    def on_epoch_begin(self, args, state, control, **kwargs):
        # After a resume, accelerate does not reach the sampler through the sharded batch sampler that skips batches.
        sampler: OneCaptionPerImage = self.trainer.sampler
        sampler.set_epoch(state.global_step // sampler.batches)

    def on_step_begin(self, args, state, control, **kwargs):
        if self._since is not None:
            self.waited += time.perf_counter() - self._since

    def on_optimizer_step(self, args, state, control, **kwargs):
        scale = self.trainer.base.logit_scale
        if self.bounds_scale and scale.requires_grad:
            scale.data.clamp_(max=MAX_LOGIT_SCALE)

    def on_step_end(self, args, state, control, **kwargs):
        self._since = time.perf_counter()
        # A resumed run would lose a mean that spans a checkpoint. `best` saves only after an evaluation.
        control.should_log |= control.should_save or (args.save_strategy == "best" and control.should_evaluate)

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_log = True  # so that the last step of a run is in the curve

    def on_log(self, args, state, control, **kwargs):
        if self._since is not None:  # logging or evaluating after a step is not waiting
            self._since = time.perf_counter()

    on_evaluate = on_log

    def on_save(self, args, state, control, **kwargs):
        self.trainer.accelerator.wait_for_everyone()  # until every process has written its files
        if state.is_world_process_zero:
            seal(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.trainer.run)
        self.on_log(args, state, control)


def seal(folder: Path, run: Mapping[str, Any]) -> None:
    """Write what identifies a run, and the digests of its checkpoint's files."""
    files = {path.relative_to(folder).as_posix(): _digest(path) for path in folder.rglob("*") if path.is_file()}
    files.pop(SEAL, None)
    write_atomically(folder / SEAL, json.dumps({"run": run, "files": files}, indent=2) + "\n")


def fault(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint, as a short clause; None if it is whole."""
    try:
        files = read_json(folder / SEAL, needs=["run", "files"])["files"]
    except FileNotFoundError:
        return f"{SEAL} is missing, so it was not written to its end"
    except UserError as error:
        return f"{SEAL} cannot be read: {str(error).split('. ')[0]}"
    for name, digest in files.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if _digest(folder / name) != digest:
            return f"{name} is not as it was written"
    return None


def find_checkpoint(wanted: str | None, config: RepairConfig, run: Mapping[str, Any]) -> Path | None:
    """Resolve `resume_from_checkpoint` (a folder, `last` or None) to a folder, or to None to start anew.

    Raises:
        UserError: If a named folder is not a whole checkpoint, or the last checkpoint is of another run.
    """
    if wanted is None:
        return None
    if wanted != "last":
        if why := fault(Path(wanted)):
            raise UserError(
                f"`resume_from_checkpoint` names {wanted}, which is not a whole checkpoint: {why}. "
                "Give a `checkpoint-...` folder, or `last`."
            )
        return Path(wanted)
    newest, aside = newest_checkpoint(str(config.output_dir))
    if aside and config.process_index == 0:
        faults = ", ".join(f"{path} ({why})" for path, why in aside.items())
        instead = "training starts anew" if newest is None else f"training resumes from {newest.name}"
        logger.warning("Left aside: %s; %s.", faults, instead)
    if newest and (changed := differences(read_json(newest / SEAL)["run"], json.loads(json.dumps(run)))):
        raise UserError(
            f"{newest} is of another run: {changed}. Give another `output_dir`, delete its checkpoints to start "
            "anew, or set `resume_from_checkpoint` to this one to resume from it anyway."
        )
    return newest


def newest_checkpoint(folder: str | Path) -> tuple[Path | None, dict[Path, str]]:
    """Find the whole checkpoint with the most steps in a run's folder, and what is wrong with each newer one."""
    steps = {path: re.fullmatch(r"checkpoint-(\d+)", path.name) for path in Path(folder).glob("checkpoint-*")}
    aside: dict[Path, str] = {}
    for _, path in sorted(((int(found[1]), path) for path, found in steps.items() if found), reverse=True):
        if (why := fault(path)) is None:
            return path, aside
        aside[path] = why
    return None, aside


def mean_loss(state: TrainerState) -> float:
    """Average the logged losses over all steps of a run, those before a resume included."""
    total = last = 0.0
    for line in state.log_history:
        if "loss" in line:  # the mean since the line before
            total += line["loss"] * (line["step"] - last)
            last = line["step"]
    return total / max(last, 1.0)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
