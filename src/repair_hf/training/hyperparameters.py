"""Our options of training, and transformers' options with other defaults; apart from `config`, which loads torch.

`repair-hf train --help` reads these alone, and stays fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from repair_hf.runtime.options import DRAFT_JPEGS, opt

GridSources = Literal["both", "paper"]
Counterparts = Literal["edited", "best", "reciprocal", "annotation"]
Slot1 = Literal["anchor", "mixed"]
Negatives = Literal["grid", "grid+captions", "grid+edits", "batch", "alone", "none"]


@dataclass
class GridRule:
    """Which records fill a grid, and which of its items enter the loss."""

    _argument_group_name = "grid"

    grids: GridSources = opt(
        "both",
        "What joins a pair: `both`: edits made from it, or own failures by their share; `paper`: own failures alone.",
    )
    own_failures_share: float = opt(
        0.0, "Share of grids, 0 to 1, that show the pair's own failures instead of edits made from it."
    )
    counterparts: Counterparts = opt(
        "edited",
        "Opposite an own failure: any edit for it (`--grids paper`: the best), the `best`, the pair's own "
        "(`reciprocal`), an `annotation`.",
    )
    slot1: Slot1 = opt(
        "anchor",
        "Slot 1, the first image and caption of a grid: the pair itself (`anchor`), or `mixed` with its edit.",
    )
    negatives: Negatives | None = opt(
        None,
        "Where edits enter the loss: `batch` (default), `grid` (default with `--grids paper`), both; "
        "`alone`: false positives only; `none`: nowhere.",
    )

    def __post_init__(self) -> None:
        self.negatives = self.negatives or ("grid" if self.grids == "paper" else "batch")

    @property
    def has_own_failures(self) -> bool:
        """Whether an anchor's own failures fill its grid."""
        return self.grids == "paper" or self.own_failures_share > 0

    @property
    def has_made_from(self) -> bool:
        """Whether the edits that were made from an anchor fill its grid."""
        return self.grids == "both" and self.own_failures_share < 1

    @property
    def has_opposites(self) -> bool:
        """Whether the items opposite the false positives are encoded."""
        return self.negatives != "alone"

    @property
    def uses_edits(self) -> bool:
        """Whether edits stand opposite the false positives."""
        return self.has_opposites and self.counterparts != "annotation"

    @property
    def draws_counterparts(self) -> bool:
        """Whether all edits of a query take turns, or one is always used."""
        return self.grids == "both" and self.counterparts == "edited"


def rule_of(options: Mapping[str, Any]) -> GridRule:
    """Return the rule that some options of training name."""
    return GridRule(**{each.name: options[each.name] for each in fields(GridRule) if each.name in options})


@dataclass
class Hyperparameters(GridRule):
    """How to train. `RepairConfig` joins these with `TrainingArguments`."""

    _argument_group_name = "training"

    grid_weight: float = opt(0.5, "Weight of the grid loss (the paper's lambda); unused with `--negatives batch`.")
    known_matches: Literal["masked", "negative"] = opt(
        "masked",
        "True pairs among a grid's negatives: `masked` out of the loss, or `negative` as in the paper.",
    )
    global_loss: Literal["softmax", "sigmoid"] | None = opt(
        None, "Global loss; by default sigmoid for a model with a `logit_bias`, such as SigLIP, else softmax."
    )
    freeze: Literal["image", "text"] | None = opt(
        None, "Tower to freeze with its projection; its embeddings stay those of the base."
    )
    lora_rank: int | None = opt(None, "Train LoRA adapters of this rank instead of all weights; needs peft.")
    lora_towers: Literal["both", "image", "text"] = opt("both", "Towers that get LoRA adapters.")
    save_merged: bool = opt(False, "Also save base and adapter as one model, in the folder `merged`.")
    batches: Literal["random", "neighbours"] = opt(
        "random",
        "Random, or `neighbours`: pairs together with their false positives, so fewer items are encoded and "
        "negatives are harder.",
    )
    chunk_size: int | None = opt(
        None,
        "Encode at most this many items at once: less memory, a third more time, the same gradients.",
    )
    cache_images: bool = opt(True, "Keep resized images in a memory-mapped file.")
    cache_folder: str | None = opt(None, "Folder of the image cache. Default: Hugging Face's assets cache.")
    draft_jpegs: bool = opt(False, DRAFT_JPEGS)

    learning_rate: float = opt(1e-5, "Peak learning rate.")
    weight_decay: float = opt(0.1, "Weight decay of AdamW; not for biases, norms, other vectors and the logit scale.")
    warmup_steps: float = opt(0.1, "Warm-up steps; below 1, a fraction of all steps.")
    lr_scheduler_type: str = opt("cosine", "Learning rate schedule.")
    num_train_epochs: float = opt(5.0, "Passes over the training captions.")
    per_device_train_batch_size: int = opt(128, "Pairs per batch and process.")
    per_device_eval_batch_size: int = opt(256, "Images or captions to encode at once in evaluation.")
    bf16: bool = opt(False, "Mixed precision with bfloat16; the weights stay float32.")
    eval_strategy: str = opt("no", "When to measure retrieval on --validation-split: `no`, `steps` or `epoch`.")
    logging_steps: float = opt(0.05, "Steps between logged losses; below 1, a fraction of all steps.")
    logging_nan_inf_filter: bool = opt(False, "Hide losses that are nan or inf from the log.")
    report_to: None | str | list[str] = opt(
        "none", "Trackers of the loss curve: trackio, wandb, tensorboard or another of transformers."
    )
    save_strategy: str = opt(
        "no", "When to write a checkpoint: `no`, `steps` or `epoch`. The final model is always saved."
    )
    resume_from_checkpoint: str | None = opt(
        "last",
        "Checkpoint to resume from; `last` is the newest complete one in the output folder, if any.",
    )
    push_to_hub: bool = opt(False, "Push the final model to the Hub with its card, as `repair-hf push model` does.")
    hub_model_id: str | None = opt(
        None, "Repository for --push-to-hub, such as me/clip-repair. Default: the output folder's name."
    )
    hub_strategy: str = opt("end", "Must be `end`: the final model is pushed in one commit.")
    dataloader_drop_last: bool = opt(True, "Must be on: every batch needs the same number of negatives.")
    remove_unused_columns: bool = opt(False, "Must be off: the collator creates the model's inputs.")
