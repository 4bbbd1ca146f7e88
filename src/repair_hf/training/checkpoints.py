"""What surrounds the steps of a training: the callback, checkpoints, and the summary.

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from transformers import PreTrainedModel, Trainer, TrainerCallback

from repair_hf.encoder.adapters import has_adapters
from repair_hf.runtime.options import UserError
from repair_hf.runtime.own_files import intact, read_json
from repair_hf.runtime.run_folder import differences, write_atomically
from repair_hf.training.collation import count_distinct
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
        self.began = self.before = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of the run's loop, evaluations and checkpoints and those before a resume included."""
        return self.before + time.perf_counter() - self.began

    def on_train_begin(self, args, state, control, **kwargs):
        # a checkpoint is saved after a log, see `on_step_end`
        self.before = max((line.get("seconds", 0.0) for line in state.log_history), default=0.0)
        self.began = time.perf_counter()

    def on_epoch_begin(self, args, state, control, **kwargs):
        # After a resume, accelerate does not reach the sampler through the sharded batch sampler that skips batches.
        sampler: OneCaptionPerImage = self.trainer.sampler
        sampler.set_epoch(state.global_step // sampler.batches)

    def on_optimizer_step(self, args, state, control, **kwargs):
        scale = self.trainer.base.logit_scale
        if self.bounds_scale and scale.requires_grad:
            scale.data.clamp_(max=MAX_LOGIT_SCALE)

    def on_step_end(self, args, state, control, **kwargs):
        # A resumed run would lose a mean that spans a checkpoint. `best` saves only after an evaluation.
        control.should_log |= control.should_save or (args.save_strategy == "best" and control.should_evaluate)

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_log = True  # so that the last step of a run is in the curve

    def on_log(self, args, state, control, logs=None, **kwargs):
        if args.disable_tqdm and state.is_world_process_zero:  # without a progress bar
            line = "   ".join(f"{name} {value:.6g}" for name, value in (logs or {}).items())
            logger.info("step %d of %d   %s", state.global_step, state.max_steps, line)

    def on_save(self, args, state, control, **kwargs):
        self.trainer.accelerator.wait_for_everyone()  # until every process has written its files
        if state.is_world_process_zero:
            seal(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.trainer.run)


def seal(folder: Path, run: Mapping[str, Any]) -> None:
    """Write what identifies a run, and the digests of its checkpoint's files."""
    files = {path.relative_to(folder).as_posix(): _digest(path) for path in folder.rglob("*") if path.is_file()}
    files.pop(SEAL, None)
    write_atomically(folder / SEAL, json.dumps({"run": run, "files": files}, indent=2) + "\n")


def fault(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint, as a short clause; None if it is whole."""
    try:
        with intact(folder / SEAL):
            files = dict(read_json(folder / SEAL, needs=["run", "files"])["files"])
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


def find_checkpoint(wanted: str | None, output: str, run: Mapping[str, Any], *, logs: bool = True) -> Path | None:
    """Resolve `resume_from_checkpoint` (a folder, `last` of those in `output`, or None) to a folder; None starts anew.

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
    newest, aside = newest_checkpoint(output)
    if aside and logs:
        faults = ", ".join(f"{path} ({why})" for path, why in aside.items())
        instead = "training starts anew" if newest is None else f"training resumes from {newest.name}"
        logger.warning("Left aside: %s; %s.", faults, instead)
    if newest and (changed := differences(read_json(newest / SEAL)["run"], json.loads(json.dumps(run)))):
        raise UserError(
            f"{newest} is of another run: {changed}. Give another output folder, delete its checkpoints to start "
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


@contextmanager
def checking_the_best(trainer: Trainer) -> Iterator[None]:
    """Raise a UserError if the best checkpoint, whose weights are loaded at the end inside, was damaged before."""
    error: Exception | None = None
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as failed:
        error = failed
    folder = Path(str(trainer.state.best_model_checkpoint))
    if trainer.args.load_best_model_at_end and folder.is_dir() and (why := fault(folder)):
        raise UserError(f"The best checkpoint, {folder}, is damaged: {why}. Delete the checkpoints to train anew.")
    if error is not None:
        raise error


def space_needed(model: PreTrainedModel, config: RepairConfig) -> int:
    """Return the bytes of the trained model and, if there are checkpoints, of two: weights and two moments."""
    sizes = [(weight.numel() * weight.element_size(), weight.requires_grad) for weight in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    saved = trained if has_adapters(model) else sum(size for size, _ in sizes)
    return saved if config.save_strategy == "no" else saved + 2 * (saved + 2 * trained)


def summarize(trainer: Any, steps: int) -> dict[str, Any]:
    """Return the summary of a finished training that `train` describes."""
    fill, loop, pairs, history = trainer.fill, trainer.loop, trainer.train_dataset, trainer.state.log_history
    evaluations = [line for line in history if "eval_i2t_R@1" in line]
    if trainer.args.load_best_model_at_end:
        evaluations = [line for line in evaluations if line["step"] == trainer.state.best_global_step]
    drawn = zip(*(fill.draw(*keys) for keys in trainer.sampler.keys(steps)), strict=True)
    images, texts = (np.concatenate(side) for side in drawn)  # (anchors, S) each
    new = np.unique(images[images >= len(pairs.images)]), np.unique(texts[texts >= len(pairs)])
    seconds, size = loop.seconds, trainer.args.train_batch_size
    return {
        "steps": steps,
        "processes": trainer.args.world_size,
        "parameters": trainer.base.num_parameters(),
        "parameters_trained": trainer.base.num_parameters(only_trainable=True),
        "seconds": seconds,
        "seconds_per_step": seconds / steps,
        "loss": mean_loss(history),
        "images_per_step": count_distinct(images, size) / steps,
        "texts_per_step": count_distinct(texts, size) / steps,
        "fill": trainer.run["fill_report"],
        "edits_reachable": fill.edits_reachable(),
        "samples_encoded": fill.samples(*new),
    } | (evaluations[-1] if evaluations else {})


def mean_loss(history: Sequence[Mapping[str, Any]]) -> float:
    """Average the logged losses over all steps of a run, those before a resume included."""
    total = last = 0.0
    for line in history:
        if "loss" in line:  # the mean since the line before
            total += line["loss"] * (line["step"] - last)
            last = line["step"]
    return total / max(last, 1.0)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
