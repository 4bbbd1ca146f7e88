"""`repair-hf train`: fine-tune a retriever on pairs and on records of its repaired failures.

Writes a folder that `AutoModel` and `AutoProcessor` load, with the loss curve (`trainer_state.json`) and
`summary.json`.
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repair_hf.cli.subcommands import suggest, unused
from repair_hf.runtime.options import PairsOptions, StageOptions, changed, flags
from repair_hf.training.options import Hyperparameters, TrainOptions

if TYPE_CHECKING:
    from repair_hf.training.config import RepairConfig
    from repair_hf.training.trainer import RepairTrainer

EPILOG = """examples:
  repair-hf train --pairs runs/world --model world/base --records runs/records --output runs/train \\
      --learning-rate 1e-4 --num-train-epochs 5
  accelerate launch --num_processes 4 -m repair_hf train --config train.yaml --bf16 --output runs/train

Without --records it fine-tunes on the pairs alone. With --save-strategy steps, the same command resumes a stopped run
from its newest checkpoint, with the same loss curve. --eval-strategy epoch measures retrieval on --validation-split
after each epoch, and keeps the best model. All TrainingArguments of transformers are options too: see --help-all.

With records, each batch also holds edits, each with the item that it was made for: see docs/training.md."""

OWN_OPTIONS = (PairsOptions, StageOptions, TrainOptions, Hyperparameters)  # without transformers'


def __getattr__(name: str) -> tuple[type, ...]:
    """Build `OPTIONS` on first use: transformers' part of them loads torch, which `--help` does not need."""
    if name != "OPTIONS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from repair_hf.training.config import RepairConfig

    return (PairsOptions, StageOptions, TrainOptions, RepairConfig)


def run(pairs_options: PairsOptions, stage: StageOptions, options: TrainOptions, config: RepairConfig) -> None:
    """Train, or print what a training would take."""
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.training.finetune import open_trainer

    is_first = config.process_index == 0
    if is_first:
        print(_setup(config))
    pairs = load_wanted(pairs_options)
    evaluates = config.eval_strategy != "no"
    validation = load_wanted(pairs_options, options.validation_split) if evaluates else None
    others = {name: value for name, value in vars(options).items() if name not in ("model", "records")}
    with tempfile.TemporaryDirectory() as scratch:  # transformers' Trainer creates its folder
        config.output_dir = scratch if stage.dry_run else stage.output
        trainer = open_trainer(options.model, pairs, options.records, config, validation=validation, **others)
        if stage.dry_run:
            return _try_out(trainer, stage.output)
    if is_first:
        _print_plan(trainer)
    summary = trainer.stage.summary
    if summary is None:
        trainer.train()
        summary = trainer.summary
    if is_first:
        _print_summary(summary)
        print(f"-> {stage.output}")
        _suggest(pairs_options, stage.output, options, config)


def _suggest(pairs_options: PairsOptions, output: str, options: TrainOptions, config: RepairConfig) -> None:
    """Name the next commands: with records, first the same training without them, which shows what they add."""
    models = [options.model, output]
    if options.records:
        plain = f"{output}-plain"
        without_records = changed(options) | {"records": None, "records_revision": None}
        models.insert(1, plain)
        if not (Path(plain) / "summary.json").is_file():
            why = "Train once more without the records, and compare: the difference shows what they add."
            suggest(
                "train", *flags(changed(pairs_options) | without_records | config.changed), "--output", plain, why=why
            )
    validation = changed(pairs_options) | {"split": "validation"}
    suggest("evaluate", *models, *flags(validation), "--output", unused(f"{output}-validation"))


def _setup(config: RepairConfig) -> str:
    batch = config.train_batch_size * config.gradient_accumulation_steps * config.world_size
    precision = {"no": "float32"}.get(config.mixed_precision, f"mixed precision {config.mixed_precision}")
    return f"world size {config.world_size}   {config.device.type}   {precision}   {batch:,} pairs per step"


def _try_out(trainer: RepairTrainer, output: str) -> None:
    """Check the output folder, take two steps, and print what the training would take."""
    from repair_hf.training.checkpoints import find_checkpoint
    from repair_hf.training.report import measure_step, warn_of_plan

    is_first, scratch = trainer.is_world_process_zero(), trainer.args.output_dir
    trainer.args.output_dir = output
    trainer.stage.check()
    find_checkpoint(trainer.args.resume_from_checkpoint or None, output, trainer.stage.deciding, logs=is_first)
    trainer.args.output_dir = scratch
    if is_first:
        _print_plan(trainer)
        warn_of_plan(trainer.plan)
    found, steps = measure_step(trainer), trainer.plan["steps"]
    if is_first:
        items = f"{trainer.plan['images_per_step']:,.0f} images and {trainer.plan['texts_per_step']:,.0f} captions"
        print(f"steps   {steps:,}   {trainer.plan['pairs_per_step']:,} training pairs each: {items} to encode")
        whole = timedelta(seconds=round(steps * found["seconds"]))
        print(
            f"time    {found['seconds']:.2g} s per step on this machine: {whole} (h:mm:ss) in all, without evaluation"
        )
        print(f"memory  {found['memory'] / 2**30:.1f} GiB at the peak of two steps")


COMPARED = {  # by each loss
    "batch": "all pairs of a batch",
    "grid": "the training pairs of a batch; and, with weight {weight:g}, each with the pairs beside it, its grid",
    "both": "all pairs of a batch; and, with weight {weight:g}, each training pair with those beside it, its grid",
    "none": "the training pairs of a batch",
}


def _print_plan(trainer: RepairTrainer) -> None:
    """Print which loss is trained, on which pairs, and how many of the edits are used."""
    loss, counts = trainer.plan["objective"], trainer.plan["fill"]
    print(f"loss    {loss}: it compares {COMPARED[loss].format(weight=trainer.args.grid_weight)}")
    pairs = f"pairs   {counts['anchors']:,} captions with their images"
    if trainer.fill.beside:
        pairs += f"; beside {counts['beside_text']:,} a wrong caption, beside {counts['beside_image']:,} a wrong image"
    print(pairs)
    if trainer.plan["edits_trained"] is not None:
        print(f"edits   {_usage(trainer.plan)}")


def _usage(planned: dict[str, Any]) -> str:
    """Say how many edits a planned training uses."""
    from repair_hf.training.report import edits_of

    sizes = edits_of(planned["fill"]).items()
    used = (f"{planned['edits_encoded'][way]:,} of {size:,} {way.upper()} edits" for way, size in sizes)
    return f"{planned['steps']:,} steps use {' and '.join(used)}: {planned['edits_trained']:.1%} of all"


def _print_summary(summary: dict[str, Any]) -> None:
    print(
        f"train   {summary['steps']:,} steps   {summary['seconds']:.1f} s   "
        f"{1000 * summary['seconds_per_step']:.0f} ms per step   loss {summary['loss']:.4f}"
    )
    if (trained := summary.get("parameters_trained", 0)) < summary.get("parameters", 0):
        print(f"        {trained:,} of {summary['parameters']:,} parameters are trained")
    if "eval_i2t_R@1" in summary:
        print(f"eval    R@1 I2T {summary['eval_i2t_R@1']:.2%}   T2I {summary['eval_t2i_R@1']:.2%}")
