"""The options of training that are ours, and those of transformers whose default is another here.

In:  nothing.
Out: `Hyperparameters`, which `RepairConfig` joins with `TrainingArguments`. Apart from it, so that `repair-hf train --help` need not
     load torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from repair_hf.runtime.options import DRAFT_JPEGS, opt

Counterparts = Literal["edited", "reciprocal", "annotation"]
Slot1 = Literal["anchor", "mixed"]


@dataclass
class Hyperparameters:
    """How to train."""

    _argument_group_name = "training"

    grid_weight: float = opt(
        0.5, "Lambda: what L_grid counts beside L_global; with `negatives` batch there is no L_grid."
    )
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
    negatives: Literal["grid", "batch", "alone", "none"] = opt(
        "grid",
        "Where the records' items are compared: each anchor's own in its grid; all of them in the global `batch`; the hard negatives "
        "`alone`, without what stands opposite them; `none` trains on the pairs alone, even where there are records.",
    )
    chunk_size: int | None = opt(
        None,
        "Encode at most so many images and captions at once, each a second time for its gradients: memory for these in "
        "place of the batch, about a third more time, the same loss and gradients.",
    )
    cache_images: bool = opt(True, "Decode and resize each image once, into a memory-mapped file.")
    cache_folder: str | None = opt(None, "Folder of that file; by default Hugging Face's cache of assets.")
    draft_jpegs: bool = opt(False, DRAFT_JPEGS)

    learning_rate: float = opt(1e-5, "Peak learning rate.")
    weight_decay: float = opt(
        0.1, "Weight decay of AdamW; biases, norms, other vectors and the logit scale have none."
    )
    warmup_steps: float = opt(0.1, "Steps of warm-up; below 1, a share of all steps.")
    lr_scheduler_type: str = opt("cosine", "Schedule of the learning rate.")
    num_train_epochs: float = opt(5.0, "Passes over the training captions.")
    per_device_train_batch_size: int = opt(128, "Pairs in a batch of one process.")
    per_device_eval_batch_size: int = opt(256, "Items encoded at once in evaluation.")
    logging_steps: float = opt(0.05, "Steps between two points of the loss curve; below 1, a share of all steps.")
    logging_nan_inf_filter: bool = opt(False, "Hide a nan or inf in the logged loss.")
    save_strategy: str = opt("no", "When to write a checkpoint to resume from: `no`, `steps` or `epoch`.")
    resume_from_checkpoint: str | None = opt(
        "last",
        "Checkpoint to go on from; `last` takes the newest whole one in the output folder, which must be of this very run, or starts "
        "anew if there is none.",
    )
    push_to_hub: bool = opt(False, "Send the finished model to the Hub, with its card: `repair-hf push model`.")
    hub_model_id: str | None = opt(None, "Its id there, such as me/clip-repair; by default the output folder's name.")
    hub_strategy: str = opt("end", "Must stay `end`: one commit, when the model is finished.")
    dataloader_drop_last: bool = opt(True, "Must stay on: every batch has as many negatives as the others.")
    remove_unused_columns: bool = opt(False, "Must stay off: the collator makes the model's inputs.")
