"""`repair-hf mine`: find what the retriever ranks high and wrongly, in both directions.

In:  pairs and a dual encoder by id or folder.
Out: `failures.parquet` (per false positive: direction, query, ground truth, false positive as rows of the pairs and as
     ids, scores, ranks) and a table of how near the misses are.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Any

from repair_hf.options import PairsOptions, StageOptions, UserError, as_flags, need, opt
from repair_hf.steps import suggest

EPILOG = """examples:
  repair-hf mine --pairs runs/world --model world/base --output runs/failures
  repair-hf mine --pairs annotations.json --image-folder train2014 --model openai/clip-vit-base-patch32 --output runs/failures"""


@dataclass
class MineOptions:
    """Which retriever, and how many of its false positives."""

    _argument_group_name = "mine"

    model: str = need("The retriever: Hub id or folder of a dual encoder, or world/base.")
    k_mine: int = opt(100, "Candidates of each query that form its pool of false positives.")
    d_i2t: int = opt(5, "False positive captions kept for each image.")
    d_t2i: int = opt(1, "False positive images kept for each caption; each costs an image edit.")
    max_queries: int | None = opt(
        None, "Mine at most so many queries of each direction, drawn at random; all by default."
    )
    seed: int = opt(0, "Seed of that draw.")
    batch_size: int = opt(256, "Items encoded at once.")

    def __post_init__(self) -> None:
        if self.max_queries is not None and self.max_queries < 1:
            raise UserError(
                f"`max_queries` must be at least 1, got {self.max_queries}; leave it out to mine all queries."
            )


OPTIONS = (PairsOptions, StageOptions, MineOptions)


def run(pairs_options: PairsOptions, stage: StageOptions, options: MineOptions) -> None:
    """Mine, or say how much there is to mine."""
    from repair_hf.encoder import DualEncoder
    from repair_hf.pairs import load_wanted
    from repair_hf.runs import finished, open_stage
    from repair_hf.toyworld.shipped import locate

    pairs = load_wanted(pairs_options)
    if stage.dry_run:
        print(
            f"{len(pairs.images):,} images and {len(pairs.captions):,} captions would be embedded, and each of them mined."
        )
        return
    encoder = DualEncoder.from_pretrained(locate(options.model), batch_size=options.batch_size)
    resolved = asdict(pairs_options) | asdict(stage) | asdict(options)
    resolved |= {"pairs_fingerprint": pairs.fingerprint, "model_digest": encoder.digest}
    del resolved["batch_size"]  # decides how fast, not what
    summary = finished(stage.output, resolved)
    if summary is None:
        summary = _mine(encoder, pairs, open_stage(stage.output, command="mine", options=resolved), options)
    _print_summary(summary)
    print(f"-> {stage.output}")
    words = [*as_flags(pairs_options), "--model", options.model, "--failures", stage.output]
    suggest(f"synthesize {shlex.join(words)} --llm ... --editor ... --output runs/records")


def _mine(encoder: Any, pairs: Any, folder: Any, options: MineOptions) -> dict[str, Any]:
    from repair_hf.mining import annotated_positives, mine_false_positives, sample_queries, summarize, with_ids
    from repair_hf.runs import finish_stage

    captions = pairs.captions["caption"][:]
    failures = mine_false_positives(
        *encoder.embed_pairs(pairs, cache_folder=folder / "embeddings"),
        pairs.caption_image,
        k_mine=options.k_mine,
        d_i2t=options.d_i2t,
        d_t2i=options.d_t2i,
        same_text_is_positive=captions,
    )
    if options.max_queries is not None:
        failures = sample_queries(failures, options.max_queries, options.seed)
    draft = folder / ".failures.parquet.tmp"
    with_ids(failures, pairs).to_parquet(draft)
    draft.replace(folder / "failures.parquet")
    doubles = annotated_positives(pairs.caption_image, len(pairs.images), captions).doubles
    summary = {"directions": summarize(failures), "positives_by_equal_text": doubles}
    finish_stage(folder, summary)
    return summary


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
    print(
        "missed: a false positive ties with every annotated answer or stands before it\n"
        "gap: cosine of a query's best false positive less that of its best answer\n"
        f"excluded: {summary['positives_by_equal_text']:,} pairs of an image and a caption that equals one of its own"
    )
