"""Our options of training, and transformers' options with other defaults; apart from `config`, which loads torch.

`repair-hf train --help` reads these alone, and stays fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from repair_hf.runtime.options import SEEDS, Bounded, Declaration, TruthOptions, need, opt

Fill = Literal["edits", "paper"]
Loss = Literal["batch", "grid", "both", "none"]
WITH_GRID: tuple[Loss, ...] = ("grid", "both")
GridMean = Literal["grids", "anchors"]
Metric = Literal["t2i_MRR", "i2t_MRR", "t2i_R@1", "i2t_R@1", "t2i_R@5", "i2t_R@5", "t2i_R@10", "i2t_R@10"]


def fixed(default: Any = None) -> Any:
    """Keep an argument of transformers at its default: another value would have no effect here, or a wrong one."""
    return field(default=default, init=False, metadata={"help": Declaration("", neutral=True)})


@dataclass
class Hyperparameters(Bounded):
    """How to train. `RepairConfig` joins these with `TrainingArguments`."""

    _argument_group_name = "training"
    _without_flag = ("output_dir",)  # which is `output` on the command line

    fill: Fill | None = opt(
        None,
        "Pairs beside each training pair: edits of it (`edits`, default), or these and its own failures (`paper`).",
    )
    loss: Loss | None = opt(
        None,
        "Where those pairs enter the loss: the `batch` (default), a `grid` for each training pair, `both`, or `none`.",
    )
    paper: bool = opt(
        False,
        "The paper's choices, in our reading: grids of failures from both sides. The authors' code was not at hand.",
        neutral=True,
        main=True,
    )
    grid_weight: float | None = opt(
        None,
        "Weight of the grid loss, the paper's lambda, with --loss grid or both. Default: 1, or 0.5 with --paper.",
        least=0,
    )
    grid_mean: GridMean = opt(
        "grids", "Average the grid loss over the `grids` of a batch, as in the paper, or over all its `anchors`."
    )
    blend: float = opt(
        1.0,
        "Save base + blend * (tuned - base): below 1, less of what the base knew is forgotten.",
        main=True,
        least=0,
        most=1,
    )
    global_loss: Literal["softmax", "sigmoid"] | None = opt(
        None, "Loss over the batch; by default sigmoid for a model with a `logit_bias`, such as SigLIP, else softmax."
    )
    freeze: Literal["image", "text"] | None = opt(
        None,
        "Tower to freeze with its projection; its embeddings stay those of the base.",
        main=True,
    )
    lora_rank: int | None = opt(
        None, "Train LoRA adapters of this rank instead of all weights; needs peft.", main=True, least=1
    )
    lora_towers: Literal["both", "image", "text"] = opt("both", "Towers that get LoRA adapters.")
    chunk_size: int | None = opt(
        None,
        "Encode at most this many items at once: less memory, a third more time, the same gradients.",
        neutral=True,
        main=True,
        least=1,
    )
    cache_images: bool = opt(True, "Keep resized images in a memory-mapped file.", neutral=True)

    learning_rate: float = opt(1e-5, "Peak learning rate.", main=True)
    weight_decay: float = opt(0.1, "Weight decay of AdamW; not for biases, norms, other vectors and the logit scale.")
    warmup_steps: float = opt(0.1, "Warm-up steps; below 1, a fraction of all steps.")
    lr_scheduler_type: str = opt("cosine", "Learning rate schedule.")
    num_train_epochs: float = opt(5.0, "Passes over the training captions.", main=True)
    per_device_train_batch_size: int = opt(128, "Pairs per batch and process.", main=True, least=1)
    per_device_eval_batch_size: int = opt(256, "Images or captions to encode at once in evaluation.")
    bf16: bool = opt(False, "Mixed precision with bfloat16; the weights stay float32.", main=True)
    eval_strategy: str = opt(
        "no", "When to measure retrieval on --validation-split: `no`, `steps` or `epoch`.", main=True
    )
    logging_steps: float = opt(0.05, "Steps between logged losses; below 1, a fraction of all steps.", neutral=True)
    report_to: None | str | list[str] = opt(
        "none",
        "Trackers of the loss curve: trackio, wandb, tensorboard or another of transformers.",
        neutral=True,
        main=True,
    )
    save_strategy: str = opt(
        "no",
        "When to write a checkpoint: `no`, `steps` or `epoch`. The final model is always saved.",
        main=True,
    )
    resume_from_checkpoint: str | None = opt(
        "last",
        "Checkpoint to resume from; `last` is the newest complete one in the output folder, if any.",
        neutral=True,
    )
    output_dir: str | None = opt(None, "Folder of the trained model.", neutral=True)
    run_name: str | None = opt(None, "Name of the run in trackers. Default: chosen by the tracker.", neutral=True)
    disable_tqdm: bool | None = opt(None, "Show no progress of the training.", neutral=True)
    save_total_limit: int | None = opt(None, "Most checkpoints to keep. Default: all.", neutral=True)
    ddp_find_unused_parameters: bool | None = opt(
        False, "Argument of DDP; every trained parameter gets a gradient.", neutral=True
    )
    dataloader_num_workers: int | None = opt(
        None, "Processes that load batches; 0 loads them in the main one. Default: 0, or 4 for a GPU.", neutral=True
    )
    dataloader_prefetch_factor: int | None = opt(
        None, "Batches that each loading process prepares ahead.", neutral=True
    )
    dataloader_persistent_workers: bool = opt(False, "Keep loading processes from epoch to epoch.", neutral=True)
    dataloader_pin_memory: bool = opt(True, "Pin memory for faster copies to a GPU.", neutral=True)
    seed: int = opt(42, "Seed of all random draws.", least=0, most=SEEDS - 1)
    data_seed: int | None = opt(
        None, "Seed of the batches and of the pairs in them. Default: that of --seed.", least=0, most=SEEDS - 1
    )
    metric_for_best_model: Metric = opt("t2i_MRR", "Measure of the best model, on --validation-split.")

    logging_nan_inf_filter: bool = fixed(False)  # would hide such losses from the log
    local_rank: int = fixed(-1)  # launchers set the variable of this name
    # inputs, loss, batches and evaluation are our own
    label_smoothing_factor: float = fixed(0.0)
    neftune_noise_alpha: float | None = fixed()
    train_sampling_strategy: str = fixed("random")
    accelerator_config: Any = fixed()
    auto_find_batch_size: bool = fixed(False)
    bf16_full_eval: bool = fixed(False)
    fp16_full_eval: bool = fixed(False)
    # older names of `activation_checkpointing`, of which transformers warns
    gradient_checkpointing: bool | None = fixed()
    gradient_checkpointing_kwargs: Any = fixed()
    # the loss needs the whole model in every process; `chunk_size` saves memory
    fsdp: Any = fixed()
    fsdp_config: Any = fixed()
    deepspeed: Any = fixed()
    # a resumed run would not end where an uninterrupted one does
    ignore_data_skip: bool = fixed(False)
    save_only_model: bool = fixed(False)
    # `repair-hf push model` and `trainer.push_to_hub()` push the model as one commit, with its card
    push_to_hub: bool = fixed(False)
    hub_model_id: str | None = fixed()
    hub_private_repo: bool | None = fixed()
    hub_strategy: str = fixed("end")
    hub_always_push: bool = fixed(False)
    hub_revision: str | None = fixed()
    hub_token: str | None = fixed()


@dataclass(kw_only=True)
class TrainOptions(TruthOptions):
    """What is trained, and on which records."""

    model: str = need("Retriever to fine-tune: Hub id or folder of a dual encoder, or of a LoRA adapter.")
    model_revision: str | None = opt(None, "Branch, tag or commit of the model on the Hub. Default: the newest.")
    dtype: Literal["float32", "bfloat16", "float16"] = opt(
        "float32", "Type of the frozen weights under LoRA; what is trained is always float32."
    )
    attn_implementation: str | None = opt(
        None, "Attention of transformers, such as sdpa or eager. Default: its own choice."
    )
    records: list[str] | None = opt(
        None,
        "Records from `repair-hf synthesize`: folders or Hub ids. Default: none, which trains on the pairs alone.",
        main=True,
    )
    records_revision: str | None = opt(
        None, "Branch, tag or commit of records on the Hub, such as round-1. Default: the newest."
    )
    any_model: bool = opt(False, "Accept a --model other than the one that the records were made with.", neutral=True)
    validation_split: str = opt("validation", "Split of the pairs that --eval-strategy evaluates on.", main=True)
