"""`repair-hf mine`: find the wrong answers that the retriever ranks highest, in both directions.

`failures.parquet` has a row per false positive: direction; query, ground truth and false positive as rows of the pairs
and as ids; scores and ranks. An index (`search` ivf or hnsw) may miss false positives, so its ranks are lower bounds;
`summary.json` then holds its recall. `unmatched.jsonl` lists the reported failures that cannot be used. Under
`accelerate launch` the processes share the captions.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from repair_hf.cli.subcommands import print_table, suggest
from repair_hf.mining.options import MiningOptions
from repair_hf.runtime.command_line import as_flags
from repair_hf.runtime.options import PairsOptions, StageOptions, UserError, opt

EPILOG = """examples:
  repair-hf mine --pairs runs/world --model world/base --output runs/failures
  repair-hf mine --pairs annotations.json --image-folder train2014 --model openai/clip-vit-base-patch32 \\
      --output runs/failures
  accelerate launch --config_file recipes/accelerate/cpu-2.yaml -m repair_hf mine --pairs runs/world \\
      --model world/base --output runs/failures"""


@dataclass(kw_only=True)
class MineOptions(MiningOptions):
    """Which retriever, and how many of its false positives to keep."""

    model: str | None = opt(
        None,
        "Retriever: Hub id or folder of a dual encoder or SentenceTransformer, or world/base; not with --embeddings.",
    )
    embeddings: str | None = opt(
        None, "Folder of embeddings in place of a model: images.npy, captions.npy and their ids.json."
    )
    reported: str | None = opt(
        None,
        "Table of known failures to use instead of mining: columns query, right, wrong; ids, paths or caption texts.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.model is None) == (self.embeddings is None):
            raise UserError("`mine` needs a retriever; give --model, or --embeddings in its place.")
        of_models = self._chosen("query_prompt", "document_prompt", "precision", "cache_images")
        if self.embeddings is not None and of_models:
            raise UserError(f"`embeddings` replaces the model, so leave out {of_models}.")
        of_mining = self._chosen("k_mine", "d_i2t", "d_t2i", "max_queries", "false_positives", "search")
        if self.reported is not None and of_mining:
            raise UserError(f"`reported` replaces mining, so leave out {of_mining}.")

    def _chosen(self, *names: str) -> list[str]:
        """Return those of some options that are not at their default."""
        defaults = {each.name: each.default for each in fields(self)}
        return [name for name in names if getattr(self, name) != defaults[name]]


UNMATCHED = "unmatched.jsonl"  # file of the reported failures that cannot be used, each with a reason

OPTIONS = (PairsOptions, StageOptions, MineOptions)
BRIEF = (
    "pairs image_folder image_column caption_column group split model embeddings output max_queries d_i2t d_t2i "
    "reported search batch_size precision cache_images dry_run"
).split()


def run(pairs_options: PairsOptions, stage: StageOptions, options: MineOptions) -> None:
    """Mine false positives, or print how much there is to mine."""
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import open_stage

    pairs, encoder, report, resolved, summary = _check(pairs_options, stage, options)
    if stage.dry_run:
        print(f"{len(pairs.images):,} images and {len(pairs.captions):,} captions would be embedded and mined.")
        if report is not None:
            print(f"reported failures: {len(report[0]):,} matched, {len(report[1]):,} not")
        return
    if summary is None:
        summary = _mine(encoder, pairs, report, open_stage(stage.output, command="mine", options=resolved), options)
    if not processes().is_main:
        return
    _print_summary(summary)
    if summary.get("reported", {}).get("unmatched"):
        print(f"reported failures that cannot be used, with reasons: {Path(stage.output) / UNMATCHED}")
    print(f"-> {stage.output}")
    model = ["--model", options.model] if options.model else ["--model", "...", "--any-model"]
    words = [*as_flags(pairs_options), *model, *as_flags(options.of_encoder), "--failures", stage.output]
    suggest("synthesize", *words, "--llm", "...", "--editor", "...", "--output", "runs/records")
    print("Look at the failures before you pay for their repair:")
    suggest("show", stage.output)


def _check(pairs_options: PairsOptions, stage: StageOptions, options: MineOptions) -> tuple[Any, Any, Any, dict, Any]:
    """Load what is to be mined and check everything, also for a dry run.

    Returns the pairs, the encoder, the matched and unmatched reports or None, the resolved options, and the summary if
    it is mined already.
    """
    from repair_hf.encoder.opening import open_retriever
    from repair_hf.mining.reported import read_report
    from repair_hf.mining.stored import StoredEmbeddings
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import check_stage, finished

    if options.search != "exact" and processes().count > 1:
        raise UserError(
            f"`search` {options.search} runs in one process, got {processes().count}; only exact search can be shared."
        )
    pairs = load_wanted(pairs_options)
    if len(pairs.images) < 2:
        raise UserError(
            f"`{pairs_options.pairs}` has one usable image in split `{pairs_options.split}`, "
            "so no caption can find a wrong one. Give more images, or --split all."
        )
    report = None if options.reported is None else read_report(options.reported, pairs)
    if options.model is None:
        encoder: Any = StoredEmbeddings(str(options.embeddings), pairs)
    else:
        encoder = open_retriever(options.model, **options.how_to_load)
    resolved = asdict(pairs_options) | asdict(stage) | asdict(options)
    resolved |= {"pairs_fingerprint": pairs.fingerprint, "model_digest": encoder.digest}
    resolved["model"] = options.model or options.embeddings  # who mined the failures
    if options.reported is not None:
        resolved["reported_digest"] = hashlib.sha256(Path(options.reported).read_bytes()).hexdigest()[:16]
    del resolved["batch_size"]  # affects speed only
    if options.search == "exact":
        del resolved["search_effort"]  # has no effect
    summary = finished(stage.output, resolved, needs=("directions", "positives_by_equal_text"))
    if summary is None:
        check_stage(stage.output, command="mine", options=resolved)
    return pairs, encoder, report, resolved, summary


def _mine(encoder: Any, pairs: Any, report: Any, folder: Path, options: MineOptions) -> dict[str, Any]:
    from repair_hf.mining.failures import FILE
    from repair_hf.mining.mine import mine_pairs
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import finish_stage, write_atomically

    failures, summary = mine_pairs(encoder, pairs, options, folder / "embeddings", report)
    if not processes().is_main:
        return {}
    if report is not None:
        lines = [json.dumps(row, ensure_ascii=False) for row in summary.pop("unmatched")]
        write_atomically(folder / UNMATCHED, "".join(f"{line}\n" for line in lines))
    draft = folder / f".{FILE}.tmp"
    failures.to_parquet(draft)
    draft.replace(folder / FILE)
    summary["captions_cut"] = encoder.report_captions(pairs.captions["caption"][:])
    finish_stage(folder, summary)
    return summary


def _print_summary(summary: dict[str, Any]) -> None:
    rows = []
    for direction, counts in summary["directions"].items():
        share = f"({counts['failed'] / counts['queries']:.1%})"
        gaps = [f"{counts[name]:+.3f}" for name in ("gap_25", "gap_50", "gap_75")]
        rows.append([direction, counts["queries"], counts["failed"], share, counts["false_positives"], *gaps])
    print_table(("", "queries", "missed", "", "rows", "gap: 25%", "median", "75%"), rows)
    if reported := summary.get("reported"):
        print(f"reported failures: {reported['matched']:,} matched, {reported['unmatched']:,} not")
    if recall := summary.get("recall"):
        shares = ", ".join(f"{share:.1%} ({direction})" for direction, share in recall.items())
        print(
            f"{summary['search']} found {shares} of the false positives of an exact search. Ranks are lower bounds: "
            "candidates that the index missed are not counted."
        )
    print(
        "missed: a false positive ranks above, or ties with, every annotated answer\n"
        "gap: cosine of a query's best false positive minus that of its best answer\n"
        f"excluded: {summary['positives_by_equal_text']:,} pairs of an image and a caption equal to one of its own"
    )
    if any((alike := summary.get("images_alike", {})).values()):
        named = ", ".join(f"{count:,} by {name.replace('_', ' ')}" for name, count in alike.items() if count)
        print(
            f"excluded: {summary['positives_by_image']:,} pairs of an image and a caption of an image alike ({named})"
        )
