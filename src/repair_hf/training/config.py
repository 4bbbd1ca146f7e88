"""The configuration of a training: transformers' `TrainingArguments` together with our `Hyperparameters`, checked."""

from __future__ import annotations

import logging
import os
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import parse_flag_from_env  # seen with accelerate 1.15
from transformers import IntervalStrategy, TrainingArguments
from transformers.trainer_utils import SaveStrategy  # seen with transformers 5.23

from repair_hf.runtime.options import Bounded, UserError, changed, neutral_names
from repair_hf.runtime.processes import check_launch, is_launched_on_cpu
from repair_hf.runtime.redaction import hide_keys
from repair_hf.training.options import WITH_GRID, Hyperparameters

logger = logging.getLogger(__name__)

WORKERS = min(4, (os.cpu_count() or 1) // 2)  # that load batches for a GPU


@dataclass
class RepairConfig(Hyperparameters, TrainingArguments):  # type: ignore[misc]  # `metric_for_best_model` is a choice
    """Arguments of training: those of [`~transformers.TrainingArguments`] and a few of ours.

    Some defaults differ from `TrainingArguments`. The paper's are `learning_rate`, `weight_decay`, `warmup_steps` and
    `lr_scheduler_type`. Within its range are `num_train_epochs` and `per_device_train_batch_size`. No checkpoints are
    written (`save_strategy`), but the final model is always saved. A run logs twenty losses (`logging_steps`), also if
    they are nan or inf. Arguments that would have no effect here, or a wrong one, such as `fsdp` and
    `label_smoothing_factor`, are not arguments of this class.

    Raises:
        UserError: If a value is out of range, has no effect, or contradicts another.
    """

    def __post_init__(self) -> None:
        Bounded.__post_init__(self)
        self.changed = hide_keys(changed(self))  # before others are derived: for the command that makes a folder
        self.fill = self.fill or ("paper" if self.paper else "edits")
        self.loss = self.loss or ("grid" if self.paper else "batch")
        # transformers takes bf16 for that of a GPU unless the CPU is named
        self.use_cpu |= is_launched_on_cpu() or (bool(self.bf16) and not torch.accelerator.is_available())
        if self.dataloader_num_workers is None:  # the batches are the same with any number
            self.dataloader_num_workers = 0 if self.use_cpu or not torch.accelerator.is_available() else WORKERS
        self._check_values()
        if self.grid_weight is None and self.loss in WITH_GRID:
            self.grid_weight = 0.5 if self.paper else 1.0
        TrainingArguments.__post_init__(self)  # type: ignore[no-untyped-call]
        check_launch(self.world_size)
        n_gpus = torch.cuda.device_count()
        if n_gpus > 1 and self.world_size == 1 and not self.use_cpu:
            logger.warning("%d GPUs are visible, and training uses one; `accelerate launch` uses all.", n_gpus)
        self._check_together()
        self._check_trackers()
        self.dataloader_pin_memory &= self.device.type != "cpu"

    @property
    def n_gpu(self) -> int:
        """At most one GPU per process: transformers would split each batch over all that the process sees."""
        return min(1, super().n_gpu)

    @property
    def step_size(self) -> int:
        """Anchors of one optimizer step, over all processes and accumulated parts."""
        return self.train_batch_size * self.gradient_accumulation_steps * self.world_size

    @property
    def draw_seed(self) -> int:
        """Seed of the order of the anchors, and of the pairs beside them."""
        return self.seed if self.data_seed is None else self.data_seed

    def _check_values(self) -> None:
        """Check the values that are given, before transformers derives others from them."""
        if any(map(parse_flag_from_env, ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"))):
            raise UserError("The launcher shards the model, and the loss needs the whole. Use recipes/accelerate.")
        for name, value in (("grid_weight", self.grid_weight), ("grid_mean", self.grid_mean != "grids")):
            if value and self.loss not in WITH_GRID:
                raise UserError(f"`{name}` changes nothing with `loss` {self.loss}; add `loss` grid or both.")
        if self.lora_rank is None and self.lora_towers != "both":
            raise UserError(f"`lora_towers` {self.lora_towers} changes nothing without `lora_rank`; leave it out.")
        if self.lora_rank is not None and self.freeze is not None:
            raise UserError(f"`freeze` {self.freeze} changes nothing with `lora_rank`; use `lora_towers`.")

    def _check_together(self) -> None:
        """Check what transformers, the launcher and the machine made of the values."""
        if self.mixed_precision == "fp16" and self.device.type == "cpu":  # by `fp16`, or by the launcher's file
            raise UserError("`fp16` needs a GPU: the CPU would silently train in float32. Use `bf16`, or neither.")
        if self.train_batch_size * self.world_size == 1:
            raise UserError(
                "A batch of one pair has no negatives, even with `gradient_accumulation_steps`. Raise "
                "`per_device_train_batch_size`; `chunk_size` saves memory and keeps the negatives."
            )

    def _check_trackers(self) -> None:
        """Check that transformers knows the trackers, and that their packages are installed."""
        # Here, because a help needs none. Seen with transformers 5.23.
        from transformers.integrations import get_reporting_integration_callbacks

        for name in self.report_to:  # type: ignore[union-attr]  # transformers has made it a list
            try:
                for callback in get_reporting_integration_callbacks([name]):  # type: ignore[no-untyped-call]
                    callback()
            except (ValueError, RuntimeError, ImportError) as error:
                raise UserError(f"`report_to` {name}: {str(error).rstrip('.')}, or leave the option out.") from error

    def prepared(self, *, has_validation: bool) -> RepairConfig:
        """Return a copy for a trainer: with pairs to evaluate on, it keeps the best model unless it saves others."""
        made = copy(self)
        if has_validation and made.save_strategy == "no":
            if made.eval_strategy == "no":
                made.eval_strategy = IntervalStrategy.EPOCH
            made.save_strategy, made.load_best_model_at_end, made.save_total_limit = SaveStrategy.BEST, True, 1
        return made

    def recorded(self) -> dict[str, Any]:
        """Return what identifies a run: the arguments that may change its result, and what the launcher decides."""
        neutral = neutral_names(RepairConfig)
        if self.eval_strategy == "no":
            neutral |= {"metric_for_best_model", "greater_is_better"}
        arguments = {name: value for name, value in self.to_dict().items() if name not in neutral}  # type: ignore[no-untyped-call]
        return arguments | {"processes": self.world_size, "mixed_precision": self.mixed_precision}
