"""The configuration of a training: transformers' `TrainingArguments` together with our `Hyperparameters`, checked."""

from __future__ import annotations

import logging
import sys
from dataclasses import MISSING, dataclass
from typing import Any

import torch
from accelerate.utils import parse_flag_from_env
from transformers import TrainingArguments

from repair_hf.evaluation.retrieval import METRICS
from repair_hf.runtime.options import SEEDS, UserError
from repair_hf.runtime.processes import check_launch, is_launched_on_cpu
from repair_hf.runtime.trackers import check_trackers
from repair_hf.training.hyperparameters import GridRule, Hyperparameters

logger = logging.getLogger(__name__)

# Arguments of transformers without an effect: loss, sampler and evaluation are ours, and evaluation is in float32.
IDLE = """
    label_smoothing_factor train_sampling_strategy label_names length_column_name average_tokens_across_devices
    include_num_input_tokens_seen bf16_full_eval fp16_full_eval prediction_loss_only eval_accumulation_steps
    include_for_metrics batch_eval_metrics eval_do_concat_batches eval_use_gather_object
""".split()
# Options of ours without an effect under a value of another one.
IDLE_CHOICES = {
    ("negatives", "batch"): ("slot1", "known_matches"),
    ("negatives", "alone"): ("counterparts",),
    ("negatives", "none"): ("grids", "own_failures_share", "counterparts", "slot1", "known_matches", "batches"),
    ("grids", "paper"): ("own_failures_share",),
    ("lora_rank", None): ("lora_towers",),
}
# Does not change the result, or differs between the processes of one run.
NOT_RECORDED = ("output_dir", "logging_dir", "resume_from_checkpoint", "disable_tqdm", "local_rank", "cache_folder")
IDLE_WITHOUT_RECORDS = ("grids", "own_failures_share")


@dataclass
class RepairConfig(Hyperparameters, TrainingArguments):
    """Arguments of training: those of [`~transformers.TrainingArguments`] and a few of ours.

    Some defaults differ from `TrainingArguments`. The paper's are `learning_rate`, `weight_decay`, `warmup_steps` and
    `lr_scheduler_type`. Within its range are `num_train_epochs` and `per_device_train_batch_size`. No checkpoints are
    written (`save_strategy`), but the final model is always saved. A run logs twenty losses (`logging_steps`), and
    nan or inf is visible in them (`logging_nan_inf_filter`). The Hub gets one commit at the end (`hub_strategy`).

    Raises:
        UserError: If a value is out of range, has no effect, or contradicts another.
    """

    def __post_init__(self) -> None:
        GridRule.__post_init__(self)
        if self.disable_tqdm is None:
            self.disable_tqdm = not sys.stderr.isatty()
        # transformers takes bf16 for that of a GPU unless the CPU is named
        self.use_cpu |= is_launched_on_cpu() or (bool(self.bf16) and not torch.accelerator.is_available())
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # every parameter that is trained gets a gradient
        self._check_before_transformers()
        if self.greater_is_better is None and (self.metric_for_best_model or "").endswith("median_rank"):
            self.greater_is_better = False
        TrainingArguments.__post_init__(self)  # type: ignore[no-untyped-call]
        check_launch(self.world_size)
        self._check_metric()
        self._take_one_gpu()
        self._check_numbers()
        self._check_own_options()
        self._check_loop()
        self._check_devices()
        check_trackers(self.report_to)  # type: ignore[arg-type]  # transformers has made it a list
        self.dataloader_pin_memory &= self.device.type != "cpu"

    def _check_before_transformers(self) -> None:
        """Check what transformers would reject, or change, with a less helpful message or none."""
        sharding = {"fsdp": "ACCELERATE_USE_FSDP", "deepspeed": "ACCELERATE_USE_DEEPSPEED"}
        for name, flag in sharding.items():
            _refuse_if(
                bool(getattr(self, name)) or parse_flag_from_env(flag),
                f"`{name}` shards the model, but the loss needs the whole model in every process. Leave it out, and "
                "launch with a file of recipes/accelerate. `chunk_size` and `gradient_checkpointing` save memory too.",
            )
        arguments = TrainingArguments.__dataclass_fields__
        for name in IDLE:
            field, given = arguments[name], getattr(self, name)
            default = field.default if field.default_factory is MISSING else field.default_factory()
            _refuse_if(
                given not in (default, "no"),
                f"`{name}` {given} has no effect: repair_hf has its own loss, sampler and evaluation. Leave it out.",
            )
        _refuse_if(
            bool(self.load_best_model_at_end) and self.metric_for_best_model is None,
            "`load_best_model_at_end` needs `metric_for_best_model`: t2i_MRR, i2t_R@1 or another of the evaluation.",
        )

    def _check_metric(self) -> None:
        """Check the metric to compare models by. transformers' default is the loss, which our evaluation lacks."""
        name = self.metric_for_best_model
        _refuse_if(
            (name is not None or self.save_strategy == "best") and (name or "").removeprefix("eval_") not in METRICS,
            f"`metric_for_best_model` must be one of {', '.join(METRICS)}, got {name}. `load_best_model_at_end`, "
            "`save_strategy` best, and schedules that wait for a plateau use it.",
        )

    def _take_one_gpu(self) -> None:
        """Use one GPU per process: transformers would split each batch over all GPUs that the process sees."""
        if self.n_gpu > 1:
            logger.warning(
                "Training uses %s alone, and %d GPUs are visible. Use `accelerate launch -m repair_hf train ...` for "
                "one process per GPU.",
                self.device,
                self.n_gpu,
            )
            self._n_gpu = 1  # no public setter; transformers' Trainer assigns it too, for model parallelism

    def _check_numbers(self) -> None:
        for name in ("chunk_size", "lora_rank", "per_device_train_batch_size"):
            value = getattr(self, name)
            _refuse_if(value is not None and value < 1, f"`{name}` must be at least 1, got {value}.")
        _refuse_if(self.grid_weight < 0, f"`grid_weight` must be at least 0, got {self.grid_weight:g}.")
        _refuse_if(
            not 0 <= self.own_failures_share <= 1,
            f"`own_failures_share` must be from 0 to 1, got {self.own_failures_share:g}.",
        )
        for name in ("seed", "data_seed"):
            value = getattr(self, name)
            is_seed = value is None or 0 <= value < SEEDS
            _refuse_if(not is_seed, f"`{name}` must be from 0 to {SEEDS - 1}, got {value}.")
        _refuse_if(
            self.train_batch_size * self.world_size == 1,
            "A batch of one pair has no negatives, even with `gradient_accumulation_steps`: L_global would be 0. "
            "Raise `per_device_train_batch_size`; `chunk_size` saves memory and keeps the negatives.",
        )

    def _check_own_options(self) -> None:
        _refuse_if(
            self.draft_jpegs and not self.cache_images,
            "`draft_jpegs` is for the file of `cache_images`; leave both on, or turn it off.",
        )
        _refuse_if(
            self.freeze is not None and self.lora_rank is not None,
            f"`freeze` {self.freeze} changes nothing with `lora_rank`, which freezes all but the adapters. Name their "
            "towers by `lora_towers`.",
        )
        for name, values in (("slot1", ("mixed",)), ("counterparts", ("best", "reciprocal"))):
            given = getattr(self, name)
            _refuse_if(
                given in values and not self.has_own_failures,
                f"`{name}` {given} needs grids with own failures: set `own_failures_share` above 0, or `grids` paper.",
            )
        defaults = Hyperparameters()
        for (choice, value), idle in IDLE_CHOICES.items():
            for name in idle if getattr(self, choice) == value else ():
                given = getattr(self, name)
                _refuse_if(
                    given != getattr(defaults, name),
                    f"`{name}` {given} changes nothing with `{choice}` {value}; leave one of them out.",
                )

    def _check_loop(self) -> None:
        _refuse_if(
            self.remove_unused_columns or not self.dataloader_drop_last,
            "`remove_unused_columns` must stay false and `dataloader_drop_last` true; leave both out.",
        )
        _refuse_if(
            bool(self.push_to_hub and (self.hub_strategy != "end" or self.hub_revision or self.hub_token)),
            "`push_to_hub` sends the finished model as one commit to `main`, with the token of `hf auth login` or "
            "HF_TOKEN; leave out `hub_strategy`, `hub_revision` and `hub_token`.",
        )
        for name in ("split_batches", "dispatch_batches"):
            _refuse_if(
                bool(getattr(self.accelerator_config, name)),
                f"`accelerator_config` with `{name}` would give each process part of a batch. Leave it out, and lower "
                "`per_device_train_batch_size`, which counts per process.",
            )
        _refuse_if(
            self.save_only_model and self.save_strategy != "no",
            "`save_only_model` writes checkpoints that cannot be resumed from. Leave it out; `save_total_limit` 1 "
            "keeps a single one.",
        )
        _refuse_if(
            self.ignore_data_skip,
            "`ignore_data_skip` would restart the epoch after a resume and change the result. Leave it out: skipped "
            "batches are neither decoded nor encoded.",
        )
        _refuse_if(
            self.auto_find_batch_size,
            "`auto_find_batch_size` would change the loss: its negatives are the rest of the batch. Leave it out.",
        )

    def _check_devices(self) -> None:
        _refuse_if(
            self.neftune_noise_alpha is not None,
            "`neftune_noise_alpha` is for language models with one table of embeddings; leave it out.",
        )
        _refuse_if(
            self.torch_compile and self.world_size > 1,
            f"`torch_compile` needs one process, got {self.world_size}: a step has several forwards, and with several "
            "processes only the first would be compiled. Leave it out.",
        )
        _refuse_if(  # by `fp16`, or by the launcher's file
            self.mixed_precision == "fp16" and self.device.type == "cpu",
            "`fp16` needs a GPU: on the CPU, training would silently be in float32. Use `bf16`, or neither.",
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave the token out of `training_args.bin`, which lies in the output folder and in each checkpoint."""
        return vars(self) | {"hub_token": None}

    def recorded(self, *, has_records: bool = True) -> dict[str, Any]:
        """Return what identifies a run: the arguments that may change its result, and what the launcher decides."""
        is_plain = not has_records or self.negatives == "none"
        left_out = (*NOT_RECORDED, *IDLE_WITHOUT_RECORDS) if is_plain else NOT_RECORDED
        arguments = {name: value for name, value in self.to_dict().items() if name not in left_out}  # type: ignore[no-untyped-call]
        return arguments | {"processes": self.world_size, "mixed_precision": self.mixed_precision}


def _refuse_if(is_wrong: bool, message: str) -> None:
    if is_wrong:
        raise UserError(message)
