"""How to train: transformers' `TrainingArguments` and what the grids need beside them.

In:  keyword arguments, or the flags and keys that `options.parse` makes of them; `Hyperparameters` holds those that are ours.
Out: `RepairConfig`, checked.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from accelerate.utils import parse_flag_from_env
from transformers import TrainingArguments

from repair_hf.hyperparameters import Hyperparameters
from repair_hf.options import UserError
from repair_hf.processes import check_launch, is_launched_on_cpu

# What these say does not change the result, or differs between the processes of one run.
NOT_RECORDED = ("output_dir", "logging_dir", "resume_from_checkpoint", "disable_tqdm", "local_rank", "cache_folder")


@dataclass
class RepairConfig(Hyperparameters, TrainingArguments):
    """Arguments of training: those of [`~transformers.TrainingArguments`] and a few of ours.

    Defaults that differ from `TrainingArguments`: `learning_rate`, `weight_decay`, `warmup_steps` and
    `lr_scheduler_type` are the paper's, `num_train_epochs` and `per_device_train_batch_size` lie in its range;
    `save_strategy` is `no` (the final model is always saved); `hub_strategy` is `end`; `logging_steps` gives twenty points a run;
    `logging_nan_inf_filter` is off, so that a loss that is not a number shows.
    """

    def __post_init__(self) -> None:
        if self.disable_tqdm is None:
            self.disable_tqdm = not sys.stderr.isatty()
        self.use_cpu |= is_launched_on_cpu()
        self._refuse_sharding()
        if self.load_best_model_at_end and self.metric_for_best_model is None:
            raise UserError(
                "`load_best_model_at_end` needs `metric_for_best_model`: t2i_MRR, i2t_R@1 or another of the evaluation."
            )
        super().__post_init__()
        check_launch(self.world_size)
        if self.chunk_size is not None and self.chunk_size < 1:
            raise UserError(
                f"`chunk_size` must be at least 1, got {self.chunk_size}; leave it out to encode all at once."
            )
        if self.draft_jpegs and not self.cache_images:
            raise UserError("`draft_jpegs` is for the file of `cache_images`; leave both on, or turn it off.")
        if self.train_batch_size * self.world_size == 1:
            raise UserError(
                "A batch of one pair has no negatives, so that L_global would be 0, also with `gradient_accumulation_steps`. Raise "
                "`per_device_train_batch_size`; `chunk_size` saves memory without costing negatives."
            )
        self._refuse_idle_choices()
        if self.grid_weight < 0:
            raise UserError(f"`grid_weight` must not be negative, got {self.grid_weight}.")
        if self.remove_unused_columns or not self.dataloader_drop_last:
            raise UserError("`remove_unused_columns` must stay false and `dataloader_drop_last` true; leave both out.")
        if self.push_to_hub and (self.hub_strategy != "end" or self.hub_revision or self.hub_token):
            raise UserError(
                "`push_to_hub` sends the finished model as one commit to `main`, with the token of `hf auth login` or HF_TOKEN; "
                "leave out `hub_strategy`, `hub_revision` and `hub_token`."
            )
        if self.label_smoothing_factor or self.train_sampling_strategy != "random":
            raise UserError(
                "`label_smoothing_factor` and `train_sampling_strategy` would change nothing: loss and sampler are ours. Leave both out."
            )
        if self.accelerator_config.split_batches:
            raise UserError(
                "`accelerator_config` with `split_batches` would give each process a part of its batch, and the steps are counted by "
                "whole ones. Leave it out, and lower `per_device_train_batch_size`, which counts once per process."
            )
        if self.ignore_data_skip:
            raise UserError(
                "`ignore_data_skip` would begin the epoch anew after a resume, and the run would end elsewhere than an uninterrupted one. "
                "Leave it out: nothing is decoded or encoded for the batches that are skipped."
            )
        if self.auto_find_batch_size:
            raise UserError("`auto_find_batch_size` would change the loss: its negatives are the rest of the batch.")
        if self.mixed_precision == "fp16" and self.device.type == "cpu":  # by `fp16`, or by the launcher's file
            raise UserError(
                "`fp16` needs a GPU: on the CPU it would quietly train in float32. Use `bf16`, or neither."
            )
        if self.n_gpu > 1:
            raise UserError(
                f"One process sees {self.n_gpu} GPUs and can train on one. Start one for each by `accelerate launch "
                "-m repair_hf train ...`, or show it a single one by CUDA_VISIBLE_DEVICES."
            )
        self.dataloader_pin_memory &= self.device.type != "cpu"

    def _refuse_idle_choices(self) -> None:
        """What would change nothing where the records' items are compared as `negatives` says."""
        defaults = Hyperparameters()
        idle = {
            "batch": ("slot1", "known_matches"),
            "alone": ("counterparts",),
            "none": ("counterparts", "slot1", "known_matches", "batches"),
        }
        for name in idle.get(self.negatives, ()):
            if (given := getattr(self, name)) != getattr(defaults, name):
                raise UserError(
                    f"`{name}` {given} changes nothing with `negatives` {self.negatives}; leave one of them out."
                )

    def _refuse_sharding(self) -> None:
        """Losses read the model's scale, and chunks its inner module, which must be whole in every process."""
        given = {"fsdp": "ACCELERATE_USE_FSDP", "deepspeed": "ACCELERATE_USE_DEEPSPEED"}
        if asked := [name for name, flag in given.items() if getattr(self, name) or parse_flag_from_env(flag)]:
            raise UserError(
                f"`{asked[0]}` cuts the model up, and every process needs the whole of it; leave it out, and launch with a file of "
                "recipes/accelerate. `chunk_size` and `gradient_checkpointing` save memory too."
            )

    def recorded(self) -> dict[str, Any]:
        """What a run is known by: the arguments that may decide its result, and what the launcher decides."""
        arguments = {name: value for name, value in self.to_dict().items() if name not in NOT_RECORDED}
        return arguments | {"processes": self.world_size, "mixed_precision": self.mixed_precision}
