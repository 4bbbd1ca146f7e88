"""`repair-hf mine`: find what the retriever ranks high and wrongly, in both directions.

In:  pairs and a dual encoder by id or folder.
Out: `failures.parquet` (per false positive: direction, query, ground truth, false positive as rows of the pairs and as
     ids, scores, ranks) and a table of how near the misses are.

Under `accelerate launch` the processes share the captions out among them; the result is that of one. With `search` ivf or hnsw
some false positives may be missed, and ranks are lower bounds: `summary.json` then holds what share was found.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from repair_hf.runtime.command_line import as_flags
from repair_hf.runtime.options import EmbeddingOptions, PairsOptions, StageOptions, UserError, need, opt
from repair_hf.cli.subcommands import suggest

EPILOG = """examples:
  repair-hf mine --pairs runs/world --model world/base --output runs/failures
  repair-hf mine --pairs annotations.json --image-folder train2014 --model openai/clip-vit-base-patch32 --output runs/failures
  accelerate launch --config_file recipes/accelerate/cpu-2.yaml -m repair_hf mine --pairs runs/world --model world/base --output runs/failures"""


@dataclass
class MineOptions(EmbeddingOptions):
    """Which retriever, and how many of its false positives."""

    _argument_group_name = "mine"

    model: str = need("The retriever: Hub id or folder of a dual encoder, or world/base.")
    k_mine: int = opt(
        100,
        "Size of each query's pool of false positives, of which the best are kept. With `search` exact it bounds `d_i2t` and `d_t2i` and "
        "changes nothing else; with an index it is how far the rank of a gt is told.",
    )
    d_i2t: int = opt(5, "False positive captions kept for each image.")
    d_t2i: int = opt(1, "False positive images kept for each caption; each costs an image edit.")
    max_queries: int | None = opt(
        None, "Mine at most so many queries of each direction, drawn at random; all by default."
    )
    false_positives: Literal["best", "random"] = opt(
        "best", "The best-scored wrong answers; or, to see what mining is good for, as many drawn at random."
    )
    seed: int = opt(0, "Seed of these draws.")
    search: Literal["exact", "ivf", "hnsw"] = opt(
        "exact", "All against all; or an index of FAISS, which may miss some, for millions of images and captions."
    )
    search_effort: float = opt(1.0, "Multiplies what an index looks at: more is slower and misses less.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isfinite(self.search_effort) and self.search_effort > 0):
            raise UserError(f"`search_effort` must be more than 0 and finite, got {self.search_effort:g}.")
        if self.search == "exact" and self.search_effort != 1:
            raise UserError(
                f"`search_effort` {self.search_effort:g} is for an index, and `search` is exact; give `search` ivf or hnsw, or leave it out."
            )
        if self.max_queries is not None and self.max_queries < 1:
            raise UserError(
                f"`max_queries` must be at least 1, got {self.max_queries}; leave it out to mine all queries."
            )


OPTIONS = (PairsOptions, StageOptions, MineOptions)


def run(pairs_options: PairsOptions, stage: StageOptions, options: MineOptions) -> None:
    """Mine, or say how much there is to mine."""
    from repair_hf.encoder.dual_encoder import DualEncoder
    from repair_hf.mining.false_positives import check_sizes
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import finished, open_stage

    check_sizes(options.k_mine, d_i2t=options.d_i2t, d_t2i=options.d_t2i)
    pairs = load_wanted(pairs_options)
    if len(pairs.images) < 2:
        raise UserError(
            f"`{pairs_options.pairs}` has one usable image in split `{pairs_options.split}`; no caption can find a wrong one there. Give "
            "more, or take everything by --split all."
        )
    if stage.dry_run:
        print(
            f"{len(pairs.images):,} images and {len(pairs.captions):,} captions would be embedded, and each of them mined."
        )
        return
    if options.search != "exact" and processes().count > 1:
        raise UserError(
            f"`search` {options.search} takes one process, got {processes().count}; they can only share exact."
        )
    encoder = DualEncoder.from_pretrained(options.model, batch_size=options.batch_size, precision=options.precision)
    resolved = asdict(pairs_options) | asdict(stage) | asdict(options)
    resolved |= {"pairs_fingerprint": pairs.fingerprint, "model_digest": encoder.digest}
    del resolved["batch_size"]  # decides how fast, not what
    if options.search == "exact":
        del resolved["search_effort"]  # decides nothing
    summary = finished(stage.output, resolved)
    if summary is None:
        summary = _mine(encoder, pairs, open_stage(stage.output, command="mine", options=resolved), options)
    if not processes().is_main:
        return
    _print_summary(summary)
    print(f"-> {stage.output}")
    words = [*as_flags(pairs_options), "--model", options.model, "--failures", stage.output]
    suggest("synthesize", *words, "--llm", "...", "--editor", "...", "--output", "runs/records")


def _mine(encoder: Any, pairs: Any, folder: Path, options: MineOptions) -> dict[str, Any]:
    from repair_hf.encoder.pixel_store import PixelStore
    from repair_hf.mining.false_positives import annotated_positives, sample_queries, summarize, with_ids
    from repair_hf.mining.random_failures import at_random
    from repair_hf.runtime.processes import processes
    from repair_hf.runtime.run_folder import finish_stage

    pixels = None
    if options.cache_images:
        pixels = PixelStore(
            pairs.images, "image", encoder.preprocessor, options.cache_folder, draft=options.draft_jpegs
        )
    captions = pairs.captions["caption"][:]
    vectors = encoder.embed_pairs(pairs, pixels=pixels, cache_folder=folder / "embeddings")
    failures, recall = _search(encoder, vectors, pairs.caption_image, captions, options)
    if not processes().is_main:
        return {}
    if options.max_queries is not None:
        failures = sample_queries(failures, options.max_queries, options.seed)
    positives = annotated_positives(pairs.caption_image, len(pairs.images), captions)
    if options.false_positives == "random":
        failures = at_random(failures, *vectors, positives, options.seed)
    draft = folder / ".failures.parquet.tmp"
    with_ids(failures, pairs).to_parquet(draft)
    draft.replace(folder / "failures.parquet")
    summary = {"directions": summarize(failures), "positives_by_equal_text": positives.doubles}
    summary["captions_cut"] = encoder.preprocessor.report_cut(captions)
    if recall:
        summary |= {"search": options.search, "recall": recall, "ranks": "lower bounds"}
    finish_stage(folder, summary)
    return summary


def _search(
    encoder: Any, vectors: Any, caption_image: Any, captions: list[str], options: MineOptions
) -> tuple[Any, dict[str, float]]:
    """The false positives; and of an index, for each direction, what share of the true ones it found."""
    from repair_hf.mining.false_positives import mine_approximately, mine_false_positives
    from repair_hf.runtime.processes import processes

    sizes = {"k_mine": options.k_mine, "d_i2t": options.d_i2t, "d_t2i": options.d_t2i}
    sizes["same_text_is_positive"] = captions
    if options.search != "exact":
        effort = options.search_effort
        return mine_approximately(*vectors, caption_image, options.search, effort=effort, **sizes)
    device = encoder.device if encoder.device.type == "cuda" else "cpu"
    return mine_false_positives(*vectors, caption_image, device=device, everyone=processes(), **sizes), {}


def _print_summary(summary: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for head in ("", "queries", "missed", "", "rows", "gap: 25%", "median", "75%"):
        table.add_column(head, justify="right" if head else "left")
    for direction, found in summary["directions"].items():
        table.add_row(
            direction,
            f"{found['queries']:,}",
            f"{found['failed']:,}",
            f"({found['failed'] / found['queries']:.1%})",
            f"{found['false_positives']:,}",
            *(f"{found[name]:+.3f}" for name in ("gap_25", "gap_50", "gap_75")),
        )
    Console().print(table)
    if recall := summary.get("recall"):
        shares = ", ".join(f"{share:.1%} ({direction})" for direction, share in recall.items())
        print(f"{summary['search']} found {shares} of the true false positives; ranks are lower bounds")
    print(
        "missed: a false positive ties with every annotated answer or stands before it\n"
        "gap: cosine of a query's best false positive less that of its best answer\n"
        f"excluded: {summary['positives_by_equal_text']:,} pairs of an image and a caption that equals one of its own"
    )
