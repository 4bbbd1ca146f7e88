"""Our options of training, and transformers' options with other defaults; apart from `config`, which loads torch.

`repair-hf train --help` reads these alone, and stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from repair_hf.runtime.options import opt

Fill = Literal["edits", "paper"]
Loss = Literal["batch", "grid", "both", "none"]


@dataclass
class Hyperparameters:
    """How to train. `RepairConfig` joins these with `TrainingArguments`."""

    _argument_group_name = "training"

    fill: Fill | None = opt(
        None,
        "Pairs beside each training pair: `edits` made from it (default), or its own failures, as in the `paper`.",
    )
    loss: Loss | None = opt(
        None,
        "Where they enter: the `batch` (default), a `grid` for each training pair, `both`, or `none`: not at all.",
    )
    paper: bool = opt(False, "The paper's choices, where you name no other: --fill paper and --loss grid.")
    grid_weight: float = opt(0.5, "Weight of the grid loss (the paper's lambda); for `--loss grid` and `both`.")
    global_loss: Literal["softmax", "sigmoid"] | None = opt(
        None, "Loss over the batch; by default sigmoid for a model with a `logit_bias`, such as SigLIP, else softmax."
    )
    freeze: Literal["image", "text"] | None = opt(
        None, "Tower to freeze with its projection; its embeddings stay those of the base."
    )
    lora_rank: int | None = opt(None, "Train LoRA adapters of this rank instead of all weights; needs peft.")
    lora_towers: Literal["both", "image", "text"] = opt("both", "Towers that get LoRA adapters.")
    chunk_size: int | None = opt(
        None,
        "Encode at most this many items at once: less memory, a third more time, the same gradients.",
    )
    cache_images: bool = opt(True, "Keep resized images in a memory-mapped file.")

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
