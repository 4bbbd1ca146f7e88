"""The configuration of a training: transformers' `TrainingArguments` together with our `Hyperparameters`, checked."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import parse_flag_from_env
from transformers import TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from repair_hf.evaluation.retrieval import METRICS
from repair_hf.runtime.options import SEEDS, UserError
from repair_hf.runtime.processes import check_launch, is_launched_on_cpu
from repair_hf.runtime.trackers import check_trackers
from repair_hf.training.options import Hyperparameters

logger = logging.getLogger(__name__)

# Arguments of transformers without an effect: loss, sampler and evaluation are ours, and evaluation is in float32.
IDLE = """
    label_smoothing_factor train_sampling_strategy label_names length_column_name average_tokens_across_devices
    include_num_input_tokens_seen bf16_full_eval fp16_full_eval prediction_loss_only eval_accumulation_steps
    include_for_metrics batch_eval_metrics eval_do_concat_batches eval_use_gather_object
""".split()
SHARDING = {"fsdp": "ACCELERATE_USE_FSDP", "deepspeed": "ACCELERATE_USE_DEEPSPEED"}
# Arguments whose other values would give a wrong result in silence, and why.
NEEDED: dict[str, tuple[Any, str]] = {
    "remove_unused_columns": (False, "the collator creates the model's inputs"),
    "dataloader_drop_last": (True, "every batch needs the same number of pairs"),
    "ignore_data_skip": (False, "a resumed epoch would begin anew, and change the result"),
    "auto_find_batch_size": (False, "another batch has other negatives; `chunk_size` saves memory"),
    "neftune_noise_alpha": (None, "it is for language models with one table of embeddings"),
}
# Does not change the result, or differs between the processes of one run.
NOT_RECORDED = ("output_dir", "logging_dir", "resume_from_checkpoint", "disable_tqdm", "local_rank", "paper")

OF_RECORDS = ("fill", "loss", "grid_weight")  # without an effect where no record is used


BEST_BY = "t2i_MRR"  # MRR changes with every rank, R@K with few


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
        self.fill = self.fill or ("paper" if self.paper else "edits")
        self.loss = self.loss or ("grid" if self.paper else "batch")
        if self.disable_tqdm is None:
            self.disable_tqdm = not sys.stderr.isatty()
        # transformers takes bf16 for that of a GPU unless the CPU is named
        self.use_cpu |= is_launched_on_cpu() or (bool(self.bf16) and not torch.accelerator.is_available())
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = False  # every parameter that is trained gets a gradient
        _raise_first(self._problems_for_transformers())
        if self.greater_is_better is None and (self.metric_for_best_model or "").endswith("median_rank"):
            self.greater_is_better = False
        TrainingArguments.__post_init__(self)  # type: ignore[no-untyped-call]
        check_launch(self.world_size)
        self._take_one_gpu()
        _raise_first(self._problems())
        check_trackers(self.report_to)  # type: ignore[arg-type]  # transformers has made it a list
        self.dataloader_pin_memory &= self.device.type != "cpu"

    @property
    def step_size(self) -> int:
        """Anchors of one optimizer step, over all processes and accumulated parts."""
        return self.train_batch_size * self.gradient_accumulation_steps * self.world_size

    @property
    def draw_seed(self) -> int:
        """Seed of the order of the anchors, and of the pairs beside them."""
        return self.seed if self.data_seed is None else self.data_seed

    def _problems_for_transformers(self) -> Iterator[str]:
        """Find what transformers would reject, or change, with a less helpful message or none."""
        for name, flag in SHARDING.items():
            if getattr(self, name) or parse_flag_from_env(flag):
                yield (
                    f"`{name}` shards the model, but the loss needs the whole model in every process. Leave it out, "
                    "and launch with a file of recipes/accelerate. `chunk_size` saves memory too."
                )
        arguments = TrainingArguments.__dataclass_fields__
        for name in IDLE:
            field, value = arguments[name], getattr(self, name)
            default = field.default if field.default_factory is MISSING else field.default_factory()
            if value not in (default, "no"):
                yield f"`{name}` {value} has no effect: loss, sampler and evaluation are our own. Leave it out."
        if self.load_best_model_at_end and self.metric_for_best_model is None:
            yield "`load_best_model_at_end` needs `metric_for_best_model`: t2i_MRR, i2t_R@1 or another metric."

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

    def _problems(self) -> Iterator[str]:
        yield from self._bad_numbers()
        yield from self._contradictions()
        for name, (value, why) in NEEDED.items():
            if getattr(self, name) != value:
                yield f"`{name}` {getattr(self, name)} is not supported: {why}. Leave it out."
        metric = (self.metric_for_best_model or "").removeprefix("eval_")
        if (self.metric_for_best_model is not None or self.save_strategy == "best") and metric not in METRICS:
            yield f"`metric_for_best_model` must be one of {', '.join(METRICS)}, got {self.metric_for_best_model}."
        if self.push_to_hub and (self.hub_strategy != "end" or self.hub_revision or self.hub_token):
            yield (
                "`push_to_hub` sends the finished model as one commit to `main`, with the token of `hf auth login` or "
                "HF_TOKEN; leave out `hub_strategy`, `hub_revision` and `hub_token`."
            )
        for name in ("split_batches", "dispatch_batches"):
            if getattr(self.accelerator_config, name):
                yield f"`{name}` would give each process part of a batch. Leave it out."
        if self.save_only_model and self.save_strategy != "no":
            yield "`save_only_model` writes checkpoints that cannot be resumed from; use `save_total_limit` 1."
        if self.mixed_precision == "fp16" and self.device.type == "cpu":  # by `fp16`, or by the launcher's file
            yield "`fp16` needs a GPU: on the CPU, training would silently be in float32. Use `bf16`, or neither."

    def _bad_numbers(self) -> Iterator[str]:
        for name in ("chunk_size", "lora_rank", "per_device_train_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                yield f"`{name}` must be at least 1, got {value}."
        if self.grid_weight < 0:
            yield f"`grid_weight` must be at least 0, got {self.grid_weight:g}."
        for name in ("seed", "data_seed"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < SEEDS:
                yield f"`{name}` must be from 0 to {SEEDS - 1}, got {value}."
        if self.train_batch_size * self.world_size == 1:
            yield (
                "A batch of one pair has no negatives, even with `gradient_accumulation_steps`. Raise "
                "`per_device_train_batch_size`; `chunk_size` saves memory and keeps the negatives."
            )

    def _contradictions(self) -> Iterator[str]:
        if self.freeze is not None and self.lora_rank is not None:
            yield f"`freeze` {self.freeze} changes nothing with `lora_rank`; use `lora_towers`."
        if self.lora_rank is None and self.lora_towers != "both":
            yield f"`lora_towers` {self.lora_towers} changes nothing without `lora_rank`; leave one of them out."

    def prepared(self, *, has_validation: bool) -> RepairConfig:
        """Return a copy for a trainer. With pairs to evaluate on, it keeps the best model unless it saves checkpoints.

        Raises:
            UserError: If it pushes.
        """
        if self.push_to_hub:
            raise UserError(
                "`push_to_hub` of the Trainer would upload pickled arguments and no model card. Leave it out and call "
                "`trainer.push_to_hub()` after the training."
            )
        made = copy(self)
        if has_validation and made.save_strategy == "no":
            if made.eval_strategy == "no":
                made.eval_strategy = IntervalStrategy.EPOCH
            made.save_strategy, made.load_best_model_at_end, made.save_total_limit = SaveStrategy.BEST, True, 1
            made.metric_for_best_model = made.metric_for_best_model or BEST_BY
            if made.greater_is_better is None:
                made.greater_is_better = True
        return made

    @property
    def repository(self) -> str:
        """The repository that a training pushes to."""
        return self.hub_model_id or Path(str(self.output_dir)).name

    def __getstate__(self) -> dict[str, Any]:
        """Leave the token out of `training_args.bin`, which lies in the output folder and in each checkpoint."""
        return vars(self) | {"hub_token": None}

    def recorded(self, *, has_records: bool = True) -> dict[str, Any]:
        """Return what identifies a run: the arguments that may change its result, and what the launcher decides."""
        left_out = NOT_RECORDED if has_records else (*NOT_RECORDED, *OF_RECORDS)
        arguments = {name: value for name, value in self.to_dict().items() if name not in left_out}  # type: ignore[no-untyped-call]
        return arguments | {"processes": self.world_size, "mixed_precision": self.mixed_precision}


def _raise_first(problems: Iterator[str]) -> None:
    for problem in problems:
        raise UserError(problem)
