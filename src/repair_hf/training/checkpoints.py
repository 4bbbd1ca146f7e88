"""What surrounds the steps of a training: its callbacks and its checkpoints.

A checkpoint is whole if it has `trainer_state.json`, which the Trainer writes last. There it also holds what decides
its run. A checkpoint without it, whose run was killed while it was written, is left aside.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback
from transformers.trainer_callback import ExportableState  # seen with transformers 5.23

from repair_hf.encoder.adapters import has_adapters
from repair_hf.runtime.files import read_json
from repair_hf.runtime.options import UserError
from repair_hf.runtime.progress import Progress
from repair_hf.runtime.stage import differences
from repair_hf.training.batches import OneCaptionPerImage
from repair_hf.training.config import RepairConfig
from repair_hf.training.step import MAX_LOGIT_SCALE

logger = logging.getLogger(__name__)

STATE = "trainer_state.json"  # of transformers
SHOWN = {"loss": "loss", "eval_i2t_R@1": "I2T R@1", "eval_t2i_R@1": "T2I R@1"}  # of a log, beside the progress


class LoopCallback(TrainerCallback):
    """Start the sampler's epochs, show and time the loop, check steps, and bound a softmax's scale.

    Args:
        trainer: Has `sampler`, `base` (the dual encoder), `accelerator`, `optimizer`, `clip` and `terms` of the loss.
        bounds_scale: Whether the logit scale is at most 100.
    """

    def __init__(self, trainer: Any, *, bounds_scale: bool) -> None:
        self.trainer, self.bounds_scale = trainer, bounds_scale
        self.began, self.before, self.shown = 0.0, 0.0, dict[str, float]()
        self.bar = Progress()  # shows nothing, such as of an evaluation by itself

    @property
    def seconds(self) -> float:
        """Seconds of the run's loop, evaluations and checkpoints and those before a resume included."""
        return self.before + time.perf_counter() - self.began

    def on_train_begin(self, args, state, control, **kwargs):
        # a checkpoint is saved after a log, see `on_step_end`
        self.before = max((line.get("seconds", 0.0) for line in state.log_history), default=0.0)
        self.began = time.perf_counter()
        how = {"unit": " steps", "initial": state.global_step, "disable": args.disable_tqdm or None}
        self.bar = Progress(total=state.max_steps, desc="Training", **how)

    def on_epoch_begin(self, args, state, control, **kwargs):
        # After a resume, accelerate does not reach the sampler through the sharded batch sampler that skips batches.
        sampler: OneCaptionPerImage = self.trainer.sampler
        sampler.set_epoch(state.global_step // sampler.batches)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        trainer = self.trainer
        terms = {name: values[-1] for name, values in trainer.terms.items()}
        numbers = [value.float() for value in terms.values()]
        if trainer.accelerator.scaler is None:  # that of fp16 skips a step whose gradient is too large: that is right
            numbers.append(trainer.clip.norm.float())
        if torch.stack(numbers).isfinite().all():
            return
        values = ", ".join(f"{name} {value.item():g}" for name, value in terms.items())
        raise UserError(
            f"Step {state.global_step + 1}: the loss or its gradient is not finite ({values}, learning rate "
            f"{trainer.optimizer.param_groups[0]['lr']:g}, logit scale {trainer.base.logit_scale.exp().item():g}). "
            "Lower `learning_rate`. Nothing of this step was saved."
        )

    def on_optimizer_step(self, args, state, control, **kwargs):
        scale = self.trainer.base.logit_scale
        if self.bounds_scale and scale.requires_grad:
            scale.data.clamp_(max=MAX_LOGIT_SCALE)

    def on_step_end(self, args, state, control, **kwargs):
        self.bar.update()
        # A resumed run would lose a mean that spans a checkpoint. `best` saves only after an evaluation.
        control.should_log |= control.should_save or (args.save_strategy == "best" and control.should_evaluate)

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_log = True  # so that the last step of a run is in the curve

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.shown |= {SHOWN[name]: value for name, value in (logs or {}).items() if name in SHOWN}
        self.bar.set_postfix_str(", ".join(f"{name} {value:.4g}" for name, value in self.shown.items()), refresh=False)

    def on_train_end(self, args, state, control, **kwargs):
        self.bar.close()


class RunOptions(TrainerCallback, ExportableState):
    """Keep what decides a run in the `trainer_state.json` of its checkpoints."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options or {})

    def state(self) -> dict[str, Any]:
        return {"args": {"options": self.options}, "attributes": {}}


class NormKeepingClip:
    """Clip gradients as `clip` does, and keep the norm that they had."""

    def __init__(self, clip: Callable[..., Tensor]) -> None:
        self.clip, self.norm = clip, torch.zeros(())

    def __call__(self, *args: Any, **options: Any) -> Tensor:
        self.norm = self.clip(*args, **options)
        return self.norm


def options_of(checkpoint: Path) -> dict[str, Any] | None:
    """Return what decides the run of a checkpoint; None if it is not whole."""
    try:
        state = read_json(checkpoint / STATE, needs=["stateful_callbacks"])
        return dict(state["stateful_callbacks"][RunOptions.__name__]["args"]["options"])
    except (FileNotFoundError, UserError, KeyError, TypeError, ValueError):
        return None


def find_checkpoint(wanted: str | None, output: str, options: Mapping[str, Any], *, logs: bool = True) -> Path | None:
    """Resolve `resume_from_checkpoint` (a folder, `last` of those in `output`, or None) to a folder; None starts anew.

    Raises:
        UserError: If a named folder is not a whole checkpoint, or the last checkpoint is of other options.
    """
    if wanted is None:
        return None
    if wanted != "last":
        if options_of(Path(wanted)) is None:
            raise UserError(
                f"`resume_from_checkpoint` names {wanted}, which is not a whole checkpoint. Give a `checkpoint-...` "
                "folder, or `last`."
            )
        return Path(wanted)
    paths = [path for path in Path(output).glob("checkpoint-*") if _steps(path).isdigit()]
    paths.sort(key=lambda path: int(_steps(path)), reverse=True)
    newest = next((path for path in paths if options_of(path) is not None), None)
    aside = paths if newest is None else paths[: paths.index(newest)]
    if aside and logs:
        instead = "training starts anew" if newest is None else f"training resumes from {newest.name}"
        logger.warning("Left aside, as incomplete: %s; %s.", ", ".join(map(str, aside)), instead)
    if newest and (changes := differences(options_of(newest) or {}, options)):
        raise UserError(
            f"{newest} is of another run: {changes}. Give another output folder, delete its checkpoints to start "
            "anew, or set `resume_from_checkpoint` to this one to resume from it anyway."
        )
    return newest


def space_needed(model: PreTrainedModel, config: RepairConfig) -> int:
    """Return the bytes of the trained model and, if there are checkpoints, of two: weights and two moments."""
    sizes = [(weight.numel() * weight.element_size(), weight.requires_grad) for weight in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    saved = trained if has_adapters(model) else sum(size for size, _ in sizes)
    return saved if config.save_strategy == "no" else saved + 2 * (saved + 2 * trained)


def _steps(checkpoint: Path) -> str:
    return checkpoint.name.rpartition("-")[2]
