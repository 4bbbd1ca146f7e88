"""What happens around the steps of a training.

In:  the events of a `Trainer`.
Out: a sampler that knows its epoch, a logit scale within bounds, a loss curve that a resumed run goes on with, and the
     time that steps waited for data.
"""

from __future__ import annotations

import math
import time

from transformers import Trainer, TrainerCallback

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
        self.waited = 0.0  # seconds
        self._since: float | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer.first_step = state.global_step

    def on_step_begin(self, args, state, control, **kwargs):
        if self._since is not None:
            self.waited += time.perf_counter() - self._since

    def on_step_end(self, args, state, control, **kwargs):
        self._since = time.perf_counter()
        control.should_log |= control.should_save  # a line across a checkpoint would be lost to the run that goes on

    def on_epoch_end(self, args, state, control, **kwargs):
        control.should_log |= control.should_save

    def on_evaluate(self, args, state, control, **kwargs):
        self._since = None

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.trainer.sampler.set_epoch(state.global_step // self.trainer.sampler.batches)

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.trainer.model.logit_scale.data.clamp_(max=MAX_LOGIT_SCALE)
