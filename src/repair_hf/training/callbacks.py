"""What happens around the steps of a training.

In:  the events of a `Trainer`.
Out: a sampler that knows its epoch, a logit scale within bounds, a loss curve that a resumed run goes on with, and the
     time that steps waited for data.
"""

from __future__ import annotations

import math
import time

import torch
from transformers import Trainer, TrainerCallback

from repair_hf.training.checkpoints import Spent

MAX_LOGIT_SCALE = math.log(100)


class Conductor(TrainerCallback):
    """Tells the sampler which epoch begins, also after a resume, keeps the logit scale within bounds, ends a line of the
    loss curve at every checkpoint, and takes the time that goes by between steps, in which the next batch is made or
    waited for.

    Args:
        trainer: With a `sampler` of ours, and a model with a `logit_scale` (its ln).
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.before = Spent()  # by the run that this one goes on with
        self.first_step = 0  # not 0 after a resume
        self._began = 0.0
        self._waits = _Waits(torch.device("cpu"))

    def spent(self, images: int, texts: int) -> Spent:
        """What the run has taken so far.

        Args:
            images: Encoded since this process began to train.
            texts: Encoded since then.
        """
        return self.before + Spent(time.perf_counter() - self._began, self._waits.seconds(), images, texts)

    def mean_loss(self, of_this_call: float) -> float:
        """The loss, mean over all steps, from that of the steps since a resume: the curve tells of those before."""
        state = self.trainer.state
        total, before = of_this_call * (state.global_step - self.first_step), 0
        for line in state.log_history:
            if "loss" in line and line["step"] <= self.first_step:  # the mean since the line before
                total += line["loss"] * (line["step"] - before)
                before = line["step"]
        return total / max(state.global_step, 1)

    def on_train_begin(self, args, state, control, **kwargs):
        self.first_step, self._began = state.global_step, time.perf_counter()
        self._waits = (_WaitsOfGPU if args.device.type == "cuda" else _Waits)(args.device)

    def on_step_begin(self, args, state, control, **kwargs):
        self._waits.end()

    def on_step_end(self, args, state, control, **kwargs):
        self._waits.begin()
        self._log_before_a_checkpoint(args, control)

    def on_epoch_end(self, args, state, control, **kwargs):
        self._log_before_a_checkpoint(args, control)

    def on_log(self, args, state, control, **kwargs):
        self._waits.begin_anew()  # what is written or evaluated after a step is no waiting

    on_save = on_evaluate = on_log

    def _log_before_a_checkpoint(self, args, control):
        """A line across a checkpoint would be lost to the run that goes on. With `best` the evaluation decides whether there is one."""
        control.should_log |= control.should_save or (args.save_strategy == "best" and control.should_evaluate)

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.trainer.sampler.set_epoch(state.global_step // self.trainer.sampler.batches)

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.trainer.model.logit_scale.data.clamp_(max=MAX_LOGIT_SCALE)


class _Waits:
    """The time between one step's end and the next one's beginning, by this process's clock.

    Args:
        device: Where the steps are computed. What is not done there yet is waited for: it is no waiting for data.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._seconds, self._since = device, 0.0, None

    def begin(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize()
        self._since = time.perf_counter()

    def begin_anew(self) -> None:
        """If one has begun."""
        if self._since is not None:
            self.begin()

    def end(self) -> None:
        if self._since is not None:
            self._seconds += time.perf_counter() - self._since

    def seconds(self) -> float:
        return self._seconds


class _WaitsOfGPU(_Waits):
    """The same by the clock of a GPU, which runs behind this process: from when it is through with a step until it gets work of the next.

    This process does not wait for it, so that the next batch is made meanwhile; the clock is read when that is past.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # not read yet

    def begin(self) -> None:
        self._since = _now()

    def begin_anew(self) -> None:
        self.seconds()  # a line of the loss curve has waited for the GPU anyway
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
