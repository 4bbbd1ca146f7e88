"""`repair-hf train`: fine-tune a retriever on pairs and on records of its repaired failures.

Writes a folder that `AutoModel` and `AutoProcessor` load, with the loss curve (`trainer_state.json`) and
`summary.json`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from repair_hf.cli.subcommands import suggest
from repair_hf.runtime.command_line import as_flags
from repair_hf.runtime.options import PairsOptions, StageOptions, TruthOptions, UserError, need, opt
from repair_hf.runtime.own_files import read_json
from repair_hf.training.options import Hyperparameters

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

With records, pairs of an edit and what it was made for stand beside each training pair: see docs/training.md."""


@dataclass(kw_only=True)
class TrainOptions(TruthOptions):
    _removed = {  # options of earlier versions, and what to do now
        "grids": "use `paper` for the paper's grids, or `fill` and `loss` for one choice at a time",
        "negatives": "use `loss`: batch, grid, both or none",
        "own_failures_share": "use `fill`: edits, or paper for own failures",
        "counterparts": "use `fill`, which decides it",
        "slot1": "use `fill`, which decides it",
        "known_matches": "leave it out; every `loss` masks known matches",
        "batches": "leave it out; batches are random",
        "save_merged": "leave it out; `push model` merges an adapter whose base is not on the Hub",
        "draft_jpegs": "leave it out; `cache_images` decodes each image once",
        "cache_folder": "set the variable HF_ASSETS_CACHE, the folder of all caches",
    }

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
    )
    records_revision: str | None = opt(
        None, "Branch, tag or commit of records on the Hub, such as round-1. Default: the newest."
    )
    any_model: bool = opt(False, "Accept a --model other than the one that the records were made with.")
    validation_split: str = opt("validation", "Split of the pairs that --eval-strategy evaluates on.")


PUSHED = "pushed.json"  # file that names the repository and revision to which a model was pushed

BRIEF = (
    "pairs image_folder model records output learning_rate num_train_epochs per_device_train_batch_size paper "
    "chunk_size bf16 lora_rank freeze eval_strategy save_strategy report_to push_to_hub dry_run"
).split()
OWN_OPTIONS = (PairsOptions, StageOptions, TrainOptions, Hyperparameters)  # without transformers'


def __getattr__(name: str) -> tuple[type, ...]:
    """Build `OPTIONS` on first use: transformers' part of them loads torch, which `--help` does not need."""
    if name != "OPTIONS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from repair_hf.training.config import RepairConfig

    return (PairsOptions, StageOptions, TrainOptions, RepairConfig)


def run(pairs_options: PairsOptions, stage: StageOptions, options: TrainOptions, config: RepairConfig) -> None:
    """Train, or print what would be trained on."""
    from repair_hf.runtime.run_folder import check_stage, finished
    from repair_hf.training.checkpoints import find_checkpoint

    is_first = config.process_index == 0
    if is_first:
        print(_setup(config))
    _settle_output(stage, config)
    pushes, config.push_to_hub = config.push_to_hub, False  # pushed below, with the metrics
    if pushes:
        from repair_hf.hub.push import check_login

        check_login(config.repository)
    trainer = _trainer(pairs_options, stage, options, config)
    if stage.dry_run:
        find_checkpoint(config.resume_from_checkpoint or None, stage.output, trainer.options, logs=is_first)
        check_stage(stage.output, command="train", options=trainer.options)
        return _print_pairs(trainer.fill.report()) if is_first else None
    summary = finished(stage.output, trainer.options, needs=("fill", "steps", "seconds", "seconds_per_step", "loss"))
    is_done, repo = summary is not None, _repository(config) if pushes and is_first else None
    if summary is None:
        trainer.train()
        summary = trainer.summary
    if is_first:
        _print_summary(summary)
        print(f"-> {stage.output}")
        if repo is not None:
            _push(Path(stage.output), repo, config, again=is_done)
        tested = PairsOptions(**asdict(pairs_options) | {"split": "train"})  # the default, so evaluate uses its own
        suggest("evaluate", *as_flags(tested), "--model", stage.output, "--output", f"{stage.output}-test")


def _trainer(
    pairs_options: PairsOptions, stage: StageOptions, options: TrainOptions, config: RepairConfig
) -> RepairTrainer:
    """Load what a training needs and check everything, also for a dry run."""
    from repair_hf.encoder.identity import check_retriever
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.pairs.truth import truth_of
    from repair_hf.records.dataset import load_records
    from repair_hf.runtime.scratch import scratch_folder
    from repair_hf.training.trainer import RepairTrainer

    pairs, encoder = load_wanted(pairs_options), _load(options, config)
    records = None if options.records is None else load_records(options.records, revision=options.records_revision)
    if options.records and records is not None and not options.any_model:
        check_retriever(encoder, records.unique("retriever"), f"The records of {', '.join(options.records)}")
    images = None if options.near_duplicates is None else encoder.embed_images(pairs.images["image"])
    truth, _ = truth_of(pairs, images, options.near_duplicates)
    validation = None if config.eval_strategy == "no" else load_wanted(pairs_options, options.validation_split)
    with scratch_folder() as scratch:
        if stage.dry_run:
            config.output_dir = str(scratch)  # transformers' Trainer creates the folder
        trainer = RepairTrainer(encoder, config, pairs, validation, records=records, truth=truth)
    one = options.records[0] if options.records and len(options.records) == 1 else options.records
    trainer.options |= asdict(pairs_options) | asdict(stage) | asdict(options) | {"records": one}
    return trainer


def _load(options: TrainOptions, config: RepairConfig) -> Any:
    from repair_hf.encoder.dual_encoder import DualEncoder

    if options.dtype != "float32" and config.lora_rank is None:
        raise UserError(
            f"`dtype` {options.dtype} is for the frozen weights under LoRA. Give `lora_rank` too, or `bf16` for mixed "
            "precision."
        )
    return DualEncoder.from_pretrained(
        options.model,
        device=config.device,
        revision=options.model_revision,
        dtype=options.dtype,
        attn_implementation=options.attn_implementation,
    )


def _settle_output(stage: StageOptions, config: RepairConfig) -> None:
    from repair_hf.training.config import RepairConfig

    if config.output_dir not in (RepairConfig().output_dir, stage.output):
        raise UserError(
            f"`output_dir` ({config.output_dir}) and `output` ({stage.output}) mean the same; give `output` only."
        )
    config.output_dir = stage.output


def _repository(config: RepairConfig) -> str:
    """Prepare the repository to push to before the training: an error should come early."""
    from repair_hf.hub.push import prepare

    return prepare(config.repository, "model", private=bool(config.hub_private_repo))


def _push(folder: Path, repo: str, config: RepairConfig, *, again: bool) -> None:
    """Push the model once: `repair-hf push model` may have added results and a licence to its card since."""
    from repair_hf.hub.push import push_model
    from repair_hf.runtime.run_folder import write_atomically

    note = folder / PUSHED
    if (
        again
        and note.is_file()
        and read_json(note, needs=["repo"], remedy="Delete it, and run the command again")["repo"] == repo
    ):
        print(f"push    already in {repo}; `repair-hf push model {folder} --repo {repo}` pushes it again")
        return
    pushed = push_model(folder, repo, private=bool(config.hub_private_repo))
    write_atomically(note, json.dumps({"repo": repo, "revision": pushed.revision}) + "\n")
    print(f"push    revision {pushed.revision[:8]}   -> {pushed.url}")


def _setup(config: RepairConfig) -> str:
    batch = config.train_batch_size * config.gradient_accumulation_steps * config.world_size
    precision = {"no": "float32"}.get(config.mixed_precision, f"mixed precision {config.mixed_precision}")
    return f"world size {config.world_size}   {config.device.type}   {precision}   {batch:,} pairs per step"


def _print_summary(summary: dict[str, Any]) -> None:
    _print_pairs(summary["fill"])
    if reach := summary.get("edits_reachable"):
        used = summary["samples_encoded"]
        parts = ", ".join(f"{used[way]:,} {way.upper()} ({share:.0%} can be used)" for way, share in reach.items())
        print(f"edits   used in this run: {parts}")
    print(
        f"train   {summary['steps']:,} steps   {summary['seconds']:.1f} s   "
        f"{1000 * summary['seconds_per_step']:.0f} ms per step   loss {summary['loss']:.4f}"
    )
    if (trained := summary.get("parameters_trained", 0)) < summary.get("parameters", 0):
        print(f"        {trained:,} of {summary['parameters']:,} parameters are trained")
    if "eval_i2t_R@1" in summary:
        print(f"eval    R@1 I2T {summary['eval_i2t_R@1']:.2%}   T2I {summary['eval_t2i_R@1']:.2%}")


def _print_pairs(report: dict[str, int]) -> None:
    beside = report["anchors"] - report["beside_0"]
    print(f"pairs   {report['anchors']:,} captions with their images; {beside:,} have pairs from records beside them")
