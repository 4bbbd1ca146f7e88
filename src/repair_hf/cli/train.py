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
from repair_hf.runtime.options import PairsOptions, StageOptions, UserError, need, opt
from repair_hf.runtime.own_files import read_json
from repair_hf.training.hyperparameters import Hyperparameters

if TYPE_CHECKING:
    from repair_hf.training.config import RepairConfig

EPILOG = """examples:
  repair-hf train --pairs runs/world --model world/base --records runs/records --output runs/train \\
      --learning-rate 1e-4 --num-train-epochs 5
  accelerate launch --num_processes 4 -m repair_hf train --config train.yaml --bf16 --output runs/train

Without --records it fine-tunes on the pairs alone. With --save-strategy steps, the same command resumes a stopped run
from its newest checkpoint, with the same loss curve. --eval-strategy epoch measures retrieval on --validation-split
after each epoch. All TrainingArguments of transformers are options too: see --help-all.

A grid is a matrix of up to 3 images and 3 captions around one training pair, its anchor: see docs/how-it-works.md."""


@dataclass
class TrainOptions:
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

NO_EDIT = "no edit is used; every match is an original annotation"

BRIEF = (
    "pairs image_folder model records output learning_rate num_train_epochs per_device_train_batch_size grids "
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
    """Train, or print the grids that would be trained on."""
    from repair_hf.runtime.run_folder import finish_stage, open_stage
    from repair_hf.training.finetune import train

    is_first = config.process_index == 0
    if is_first:
        print(_setup(config))
    ready = _check(pairs_options, stage, options, config)
    if stage.dry_run:
        return _print_grids(ready.data.report(), config) if is_first else None
    summary, encoder, pairs, records = ready.summary, ready.encoder, ready.pairs, ready.records
    repo = _repository(config) if is_first else None
    if summary is None:
        if is_first:
            open_stage(stage.output, command="train", options=ready.resolved, is_bound=ready.resumes)
        config.push_to_hub = False  # pushed below, with the metrics
        if is_first:
            edits = () if records is None else records["edit_text"]
            texts = [*pairs.captions["caption"], *(edit for edit in edits if edit is not None)]
            n_cut = encoder.preprocessor.report_captions(texts)
        found = ready.checkpoint or False
        summary = train(
            encoder, pairs, records, config, validation=ready.validation, data=ready.data, checkpoint=found
        )
        if is_first:
            finish_stage(stage.output, summary | {"captions_cut": n_cut})
    if is_first:
        _print_summary(summary, config)
        print(f"-> {stage.output}")
        if repo is not None:
            _push(Path(stage.output), repo, config, again=ready.summary is not None)
        tested = PairsOptions(**asdict(pairs_options) | {"split": "train"})  # the default, so evaluate uses its own
        suggest("evaluate", *as_flags(tested), "--model", stage.output, "--output", f"{stage.output}-test")


@dataclass(frozen=True)
class _Ready:
    """What a training needs, loaded and checked."""

    pairs: Any
    validation: Any
    records: Any
    encoder: Any
    data: Any  # the grids
    resolved: dict[str, Any]
    checkpoint: str | None  # a whole one to resume from
    resumes: bool  # from the folder's own last checkpoint
    summary: dict[str, Any] | None  # if it is trained already


def _check(pairs_options: PairsOptions, stage: StageOptions, options: TrainOptions, config: RepairConfig) -> _Ready:
    """Load what a training needs and check everything, also for a dry run."""
    from repair_hf.encoder.identity import check_retriever
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.records.dataset import load_records
    from repair_hf.runtime.run_folder import check_stage, digest, finished
    from repair_hf.training.checkpoints import find_checkpoint
    from repair_hf.training.checks import global_loss_of
    from repair_hf.training.finetune import check_start
    from repair_hf.training.tables import grids_of

    _settle_output(stage, config)
    if config.push_to_hub:
        from repair_hf.hub.push import check_login

        check_login(_repository_name(config))
    pairs = load_wanted(pairs_options)
    encoder = _load(options, config)
    records = None if options.records is None else load_records(options.records, revision=options.records_revision)
    if options.records and records is not None:
        named = f"The records of {', '.join(options.records)}"
        if not options.any_model:
            check_retriever(encoder, records.unique("retriever"), named)
    data = grids_of(pairs, records, config)
    resolved: dict[str, Any] = asdict(pairs_options) | asdict(stage) | asdict(options)
    resolved |= config.recorded(has_records=records is not None)
    resolved |= {"global_loss": global_loss_of(encoder.model, config)}
    resolved |= {"pairs_fingerprint": pairs.fingerprint, "model_digest": encoder.digest}
    resolved |= {"records": options.records[0] if options.records and len(options.records) == 1 else options.records}
    resolved |= {"records_digest": None if records is None else digest(records["record_id"][:])}
    summary = finished(stage.output, resolved, needs=("grids", "steps", "seconds", "seconds_per_step", "loss"))
    checkpoint, resumes, validation = None, False, None
    if summary is None:
        checkpoint = find_checkpoint(config.resume_from_checkpoint or None, config)
        resumes = config.resume_from_checkpoint == "last" and checkpoint is not None
        if config.eval_strategy != "no":
            validation = load_wanted(pairs_options, options.validation_split)
        if config.process_index == 0:
            check_stage(stage.output, command="train", options=resolved, is_bound=resumes)
        check_start(encoder, data, config, checkpoint)
    return _Ready(pairs, validation, records, encoder, data, resolved, checkpoint, resumes, summary)


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


def _repository(config: RepairConfig) -> str | None:
    """Prepare the repository to push to, if any, before the training: an error should come early."""
    if not config.push_to_hub:
        return None
    from repair_hf.hub.push import prepare

    return prepare(_repository_name(config), "model", private=bool(config.hub_private_repo))


def _repository_name(config: RepairConfig) -> str:
    from repair_hf.hub.trainer import repository_of

    return repository_of(config)


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


def _print_summary(summary: dict[str, Any], config: RepairConfig) -> None:
    _print_grids(summary["grids"], config)
    if reach := summary.get("edits_reachable"):
        used = summary["samples_encoded"]
        parts = ", ".join(f"{share:.0%} {way} ({used[way]:,} used in this run)" for way, share in reach.items())
        print(f"edits   usable in training: {parts}")
    print(
        f"train   {summary['steps']:,} steps   {summary['seconds']:.1f} s   "
        f"{1000 * summary['seconds_per_step']:.0f} ms per step   {summary['waiting']:.1%} waiting for data   "
        f"loss {summary['loss']:.4f}"
    )
    if (trained := summary.get("parameters_trained", 0)) < summary.get("parameters", 0):
        print(f"        {trained:,} of {summary['parameters']:,} parameters are trained")
    if "eval_i2t_R@1" in summary:
        print(f"eval    R@1 I2T {summary['eval_i2t_R@1']:.2%}   T2I {summary['eval_t2i_R@1']:.2%}")


def _print_grids(report: dict[str, int], config: RepairConfig) -> None:
    full, partial = report["grids_3"], report["grids_2"]
    print(f"grids   {full + partial:,} of {report['anchors']:,} captions have a grid ({full:,} full)")
    if "cells" not in report:
        return
    for item, kind in (("image", "images"), ("caption", "captions")) if config.negatives != "alone" else ():
        found = {name: report[f"{item}_{name}"] for name in ("reciprocal", "other_edit", "annotation")}
        if total := sum(found.values()):
            own, others, annotations = (f"{count / total:.0%}" for count in found.values())
            mix = f"{own} edits made from the same pair, {others} other edits, {annotations} original annotations"
            print(f"        matching {kind}: {mix if found['annotation'] < total else NO_EDIT}")
    if config.negatives == "batch":  # there other matches are masked than in a grid
        return
    known = "masked out" if config.known_matches == "masked" else "kept as negatives"
    print(f"        {report['cells_known']:,} of {report['cells']:,} negatives are known true pairs; {known}")
