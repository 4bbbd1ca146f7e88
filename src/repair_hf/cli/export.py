"""`repair-hf export`: write a retriever for open_clip, or records for the trainer of sentence-transformers.

open_clip and programs that use its model names, such as CLIP_benchmark, load the folder as `local-dir:FOLDER`. The
same pixels and tokens give the same embeddings.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass

from repair_hf.cli.subcommands import suggest
from repair_hf.runtime.command_line import as_flags
from repair_hf.runtime.options import PairsOptions, StageOptions, need, opt

EPILOG = """examples:
  repair-hf export open_clip runs/train --output runs/open_clip
  repair-hf export open_clip openai/clip-vit-base-patch32 --output runs/open_clip
  repair-hf export triplets --records runs/records --pairs runs/world --output runs/triplets

`repair-hf push model FOLDER --repo ID --open-clip` sends both formats to the Hub."""


@dataclass
class ExportOptions:
    model: str = need("The retriever: Hub id or folder of a CLIP, or world/base.")


def open_clip(options: ExportOptions, stage: StageOptions) -> None:
    """Write a CLIP for open_clip, and so for CLIP_benchmark."""
    from repair_hf.encoder.dual_encoder import DualEncoder
    from repair_hf.encoder.open_clip import export_open_clip, open_clip_config
    from repair_hf.runtime.run_folder import check_stage, finish_stage, finished, open_stage

    encoder = DualEncoder.from_pretrained(options.model, device="cpu")
    size = sum(parameter.numel() for parameter in encoder.model.parameters())
    resolved = asdict(options) | asdict(stage) | {"model_digest": encoder.digest}
    is_done = finished(stage.output, resolved) is not None
    open_clip_config(encoder, options.model)  # raises an error if the model cannot be exported
    if not is_done:
        check_stage(stage.output, command="export open_clip", options=resolved)
    if stage.dry_run:
        print(f"{options.model}, {size:,} parameters, would be written for open_clip.")
        return
    if not is_done:
        folder = open_stage(stage.output, command="export open_clip", options=resolved)
        config = export_open_clip(encoder, folder, name=folder.resolve().name)
        finish_stage(folder, {"parameters": size, **config})
    name = f"local-dir:{stage.output}"
    print(
        f"export  {options.model}, {size:,} parameters   -> {stage.output}\n"
        f"open_clip.create_model_and_transforms({name!r}) loads it; "
        f"`clip_benchmark eval --model {shlex.quote(name)} --pretrained '' --no_amp ...` evaluates it."
    )
    suggest("evaluate", options.model, "--pairs", "...", "--output", "runs/evaluate")


@dataclass
class TripletOptions:
    records: list[str] = need("Folders of `repair-hf synthesize` or Hub ids of records.")
    records_revision: str | None = opt(
        None, "Tag, branch or commit of records on the Hub, such as round-1; the newest by default."
    )


def triplets(options: TripletOptions, pairs_options: PairsOptions, stage: StageOptions) -> None:
    """Write records as triplets (anchor, positive, negative), for sentence-transformers."""
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.records.dataset import load_records
    from repair_hf.records.triplets import export_triplets
    from repair_hf.runtime.run_folder import check_stage, digest, finish_stage, finished, open_stage

    pairs = load_wanted(pairs_options)
    records = load_records(options.records, pairs=pairs, revision=options.records_revision)
    resolved = asdict(options) | asdict(pairs_options) | asdict(stage)
    resolved |= {"pairs_fingerprint": pairs.fingerprint, "records_digest": digest(records["record_id"][:])}
    counts = finished(stage.output, resolved)
    if counts is None:
        check_stage(stage.output, command="export triplets", options=resolved)
    if stage.dry_run:
        print(f"{len(records):,} records would become up to {4 * len(records):,} triplets.")
        return
    if counts is None:
        folder = open_stage(stage.output, command="export triplets", options=resolved)
        counts = export_triplets(records, pairs, folder)
        finish_stage(folder, counts)
    made = ", ".join(f"{count:,} {config}" for config, count in counts.items())
    print(f"export  {len(records):,} records: {made}   -> {stage.output}")
    suggest("mine", *as_flags(pairs_options), "--model", "...", "--output", "runs/failures")


ACTIONS = {
    "open_clip": ((ExportOptions, StageOptions), open_clip),
    "triplets": ((TripletOptions, PairsOptions, StageOptions), triplets),
}
