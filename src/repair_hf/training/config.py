"""How to train: transformers' `TrainingArguments` and what the grids need beside them.

In:  keyword arguments, or the flags and keys that `options.parse` makes of them; `Hyperparameters` holds those that are ours.
Out: `RepairConfig`, checked.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import MISSING, dataclass
from typing import Any

from accelerate.utils import parse_flag_from_env
from transformers import TrainingArguments

from repair_hf.evaluation.retrieval import METRICS
from repair_hf.runtime.options import SEEDS, UserError
from repair_hf.runtime.processes import check_launch, is_launched_on_cpu
from repair_hf.training.hyperparameters import Hyperparameters

logger = logging.getLogger(__name__)

# What these say does not change the result, or differs between the processes of one run.
# Of transformers, but loss, sampler and evaluation are ours, and the evaluation is in float32.
IDLE = """
    label_smoothing_factor train_sampling_strategy label_names length_column_name average_tokens_across_devices
    include_num_input_tokens_seen bf16_full_eval fp16_full_eval prediction_loss_only eval_accumulation_steps include_for_metrics
    batch_eval_metrics eval_do_concat_batches eval_use_gather_object
""".split()
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
        self._refuse_idle_arguments()
        if self.load_best_model_at_end and self.metric_for_best_model is None:
            raise UserError(
                "`load_best_model_at_end` needs `metric_for_best_model`: t2i_MRR, i2t_R@1 or another of the evaluation."
            )
        if self.greater_is_better is None and (self.metric_for_best_model or "").endswith("median_rank"):
            self.greater_is_better = False
        super().__post_init__()
        check_launch(self.world_size)
        self._check_metric()
        self._take_one_gpu()
        if self.chunk_size is not None and self.chunk_size < 1:
            raise UserError(
                f"`chunk_size` must be at least 1, got {self.chunk_size}; leave it out to encode all at once."
            )
        if self.draft_jpegs and not self.cache_images:
            raise UserError("`draft_jpegs` is for the file of `cache_images`; leave both on, or turn it off.")
        if self.train_batch_size < 1:
            raise UserError(f"`per_device_train_batch_size` must be at least 1, got {self.train_batch_size}.")
        if self.data_seed is not None and not 0 <= self.data_seed < SEEDS:
            raise UserError(f"`data_seed` must lie between 0 and {SEEDS - 1}, got {self.data_seed}.")
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
        for name in ("split_batches", "dispatch_batches"):
            if getattr(self.accelerator_config, name):
                raise UserError(
                    f"`accelerator_config` with `{name}` would give each process a part of a batch, and grids and steps are made for whole "
                    "ones. Leave it out, and lower `per_device_train_batch_size`, which counts once per process."
                )
        if self.neftune_noise_alpha is not None:
            raise UserError("`neftune_noise_alpha` is for language models with one table of embeddings; leave it out.")
        if self.torch_compile and self.world_size > 1:
            raise UserError(
                f"`torch_compile` needs one process, got {self.world_size}: a step encodes several groups, and under several processes the "
                "compiled model takes the first alone. Leave it out."
            )
        if self.save_only_model and self.save_strategy != "no":
            raise UserError(
                "`save_only_model` writes checkpoints that no run can go on from. Leave it out; `save_total_limit` 1 keeps a single one."
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
        self.dataloader_pin_memory &= self.device.type != "cpu"

    def _take_one_gpu(self) -> None:
        """transformers would cut each batch into parts for all GPUs that one process sees."""
        if self.n_gpu > 1:
            logger.warning(
                "This process trains on %s alone, of %d GPUs here. `accelerate launch -m repair_hf train ...` starts one for each.",
                self.device,
                self.n_gpu,
            )
            self._n_gpu = 1

    def _check_metric(self) -> None:
        """transformers takes the loss where none is named, which the evaluation does not have."""
        name = self.metric_for_best_model
        if name is None and self.save_strategy != "best":
            return
        if name is None or name.removeprefix("eval_") not in METRICS:
            raise UserError(
                f"`metric_for_best_model` must be one of {', '.join(METRICS)}, got {name}. It is what `load_best_model_at_end`, "
                "`save_strategy` best, and the schedules that wait for a plateau go by."
            )

    def _refuse_idle_arguments(self) -> None:
        arguments = TrainingArguments.__dataclass_fields__
        for name in IDLE:
            field, given = arguments[name], getattr(self, name)
            default = field.default if field.default_factory is MISSING else field.default_factory()
            if given not in (default, "no"):
                raise UserError(
                    f"`{name}` {given} would change nothing: loss, sampler and evaluation are ours. Leave it out."
                )

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
