"""How to train: transformers' `TrainingArguments` and what the grids need beside them.

In:  keyword arguments, or the flags and keys that `options.parse` makes of them.
Out: `RepairConfig`, checked.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from transformers import TrainingArguments

from repair_hf.grids import Counterparts, Slot1
from repair_hf.options import UserError, opt
from repair_hf.processes import check_launch, is_launched_on_cpu


@dataclass
class RepairConfig(TrainingArguments):
    """Arguments of training: those of [`~transformers.TrainingArguments`] and a few of ours.

    Defaults that differ from `TrainingArguments`: `learning_rate`, `weight_decay`, `warmup_steps` and
    `lr_scheduler_type` are the paper's, `num_train_epochs` and `per_device_train_batch_size` lie in its range;
    `save_strategy` is `no` (the final model is always saved); `hub_strategy` is `end`; `logging_steps` gives twenty points a run;
    `logging_nan_inf_filter` is off, so that a loss that is not a number shows.
    """

    _argument_group_name = "training"

    grid_weight: float = opt(0.5, "Lambda: what L_grid counts beside L_global.")
    counterparts: Counterparts = opt(
        "edited",
        "What stands opposite a false positive in a grid: the edit of the record that mirrors the anchor's, else of "
        "another record of that query, else the annotation; `reciprocal` skips the second, `annotation` both edits.",
    )
    slot1: Slot1 = opt(
        "anchor",
        "First slot of a grid: the original pair; or `mixed`, one half of it replaced by the anchor's own edit.",
    )
    known_matches: Literal["masked", "negative"] = opt(
        "masked",
        "Off-diagonal cells of a grid that are known to be true pairs, such as a false positive image with its own "
        "caption: take part in no softmax, or count as negatives as in the paper.",
    )
    batches: Literal["random", "neighbours"] = opt(
        "random",
        "Who meets in a batch: anchors at random, or each with the anchors of its own false positives. Neighbours share "
        "items, so that a step encodes fewer; and the negatives of L_global become harder.",
    )
    negatives: Literal["grid", "none"] = opt("grid", "`none` trains on the pairs alone, even where there are records.")
    chunk_size: int | None = opt(
        None,
        "Encode at most so many images and captions at once, each a second time for its gradients: memory for these in "
        "place of the batch, about a third more time, the same loss and gradients.",
    )
    cache_images: bool = opt(True, "Decode and resize each image once, into a memory-mapped file.")
    cache_folder: str | None = opt(None, "Folder of that file; by default Hugging Face's cache of assets.")

    learning_rate: float = opt(1e-5, "Peak learning rate.")
    weight_decay: float = opt(0.1, "Weight decay of AdamW; biases, norms and the logit scale have none.")
    warmup_steps: float = opt(0.1, "Steps of warm-up; below 1, a share of all steps.")
    lr_scheduler_type: str = opt("cosine", "Schedule of the learning rate.")
    num_train_epochs: float = opt(5.0, "Passes over the training captions.")
    per_device_train_batch_size: int = opt(128, "Pairs in a batch of one process.")
    per_device_eval_batch_size: int = opt(256, "Items encoded at once in evaluation.")
    logging_steps: float = opt(0.05, "Steps between two points of the loss curve; below 1, a share of all steps.")
    logging_nan_inf_filter: bool = opt(False, "Hide a nan or inf in the logged loss.")
    save_strategy: str = opt("no", "When to write a checkpoint to resume from: `no`, `steps` or `epoch`.")
    resume_from_checkpoint: str | None = opt(
        None,
        "Checkpoint to go on from; `last` takes the newest in the output folder, or starts anew if there is none.",
    )
    push_to_hub: bool = opt(False, "Send the finished model to the Hub, with its card: `repair-hf push model`.")
    hub_model_id: str | None = opt(None, "Its id there, such as me/clip-repair; by default the output folder's name.")
    hub_strategy: str = opt("end", "Must stay `end`: one commit, when the model is finished.")
    dataloader_drop_last: bool = opt(True, "Must stay on: every batch has as many negatives as the others.")
    remove_unused_columns: bool = opt(False, "Must stay off: the collator makes the model's inputs.")

    def __post_init__(self) -> None:
        if self.disable_tqdm is None:
            self.disable_tqdm = not sys.stderr.isatty()
        self.use_cpu |= is_launched_on_cpu()
        super().__post_init__()
        check_launch(self.world_size)
        if self.chunk_size is not None and self.chunk_size < 1:
            raise UserError(
                f"`chunk_size` must be at least 1, got {self.chunk_size}; leave it out to encode all at once."
            )
        if self.grid_weight < 0:
            raise UserError(f"`grid_weight` must not be negative, got {self.grid_weight}.")
        if self.remove_unused_columns or not self.dataloader_drop_last:
            raise UserError("`remove_unused_columns` must stay false and `dataloader_drop_last` true; leave both out.")
        if self.push_to_hub and (self.hub_strategy != "end" or self.hub_revision or self.hub_token):
            raise UserError(
                "`push_to_hub` sends the finished model as one commit to `main`, with the token of `hf auth login` or HF_TOKEN; "
                "leave out `hub_strategy`, `hub_revision` and `hub_token`."
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
