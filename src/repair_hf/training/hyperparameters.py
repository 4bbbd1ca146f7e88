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

    grids: GridSources = opt(
        "both",
        "Records that fill an anchor's grid: those whose edit was made from it (and its own failures, see "
        "`own_failures_share`), or `paper`: the paper's rule.",
    )
    own_failures_share: float = opt(
        0.0, "How often the anchor's own failures fill its grid, opposite an edit of another record; from 0 to 1."
    )
    counterparts: Counterparts = opt(
        "edited",
        "Item opposite an own failure: any edit of that query, drawn anew each epoch; the `best`-scored; the "
        "`reciprocal` only. Else, or with `annotation`, an annotated item.",
    )
    slot1: Slot1 = opt(
        "anchor",
        "First slot of a grid: `anchor`, the original pair; `mixed`, one of its items replaced by the anchor's own "
        "edit.",
    )
    negatives: Negatives | None = opt(
        None,
        "Where records enter the loss: `batch`, the global batch (default); `grid`, local grids (default with "
        "`--grids paper`); both; `alone`, without counterparts; `none` ignores records.",
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

    grid_weight: float = opt(0.5, "Weight of L_grid in the loss (lambda); unused with `negatives` batch.")
    known_matches: Literal["masked", "negative"] = opt(
        "masked",
        "Off-diagonal grid cells known to be true pairs: masked out of the loss, or negatives as in the paper.",
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
        "Fill a batch at random, or with anchors of its false positives: fewer items to encode, harder negatives.",
    )
    chunk_size: int | None = opt(
        None,
        "Encode at most this many images or captions at once: less memory, a third more time, the same gradients.",
    )
    cache_images: bool = opt(True, "Decode and resize each image once, into a memory-mapped file.")
    cache_folder: str | None = opt(None, "Folder of that file; by default Hugging Face's cache of assets.")
    draft_jpegs: bool = opt(False, DRAFT_JPEGS)

    learning_rate: float = opt(1e-5, "Peak learning rate.")
    weight_decay: float = opt(
        0.1, "Weight decay of AdamW; not applied to biases, norms, other vectors and the logit scale."
    )
    warmup_steps: float = opt(0.1, "Warm-up steps; below 1, a fraction of all steps.")
    lr_scheduler_type: str = opt("cosine", "Learning rate schedule.")
    num_train_epochs: float = opt(5.0, "Passes over the training captions.")
    per_device_train_batch_size: int = opt(128, "Pairs per batch and process.")
    per_device_eval_batch_size: int = opt(256, "Items encoded at once in evaluation.")
    logging_steps: float = opt(0.05, "Steps between points of the loss curve; below 1, a fraction of all steps.")
    logging_nan_inf_filter: bool = opt(False, "Hide a nan or inf in the logged loss.")
    report_to: None | str | list[str] = opt(
        "none", "Trackers of the loss curve: trackio, wandb, tensorboard or another of transformers."
    )
    save_strategy: str = opt("no", "When to write a checkpoint: `no`, `steps` or `epoch`.")
    resume_from_checkpoint: str | None = opt(
        "last",
        "Checkpoint to resume from; `last` takes this run's newest complete one in the output folder, if any.",
    )
    push_to_hub: bool = opt(False, "Push the finished model to the Hub with its card, as `repair-hf push model` does.")
    hub_model_id: str | None = opt(
        None, "Repository for `push_to_hub`, such as me/clip-repair; by default the output folder's name."
    )
    hub_strategy: str = opt("end", "Must stay `end`: one commit with the finished model.")
    dataloader_drop_last: bool = opt(True, "Must stay on: every batch has the same number of negatives.")
    remove_unused_columns: bool = opt(False, "Must stay off: the collator creates the model's inputs.")
