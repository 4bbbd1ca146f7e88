"""`repair-hf mine`: find the wrong answers that the retriever ranks highest, in both directions.

`failures.parquet` has a row per false positive: direction; query, ground truth and false positive as rows of the pairs
and as ids; scores and ranks. An index (`search` ivf) may miss false positives, so its ranks are lower bounds;
`summary.json` then holds its recall. Under `accelerate launch` the processes share the captions.

Without `--output` it takes a first look: it mines a sample, and writes the page of `repair-hf show` beside the
failures, with the price of their repair. Nothing is asked or paid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from repair_hf.analysis.options import PriceOptions, ShowOptions
from repair_hf.cli.show import draw
from repair_hf.cli.subcommands import print_table, suggest, unused
from repair_hf.mining.options import MiningOptions
from repair_hf.runtime.options import PairsOptions, StageOptions, changed, fields_of, flags, opt

EPILOG = """examples:
  repair-hf mine photos --model openai/clip-vit-base-patch32
  repair-hf mine --pairs runs/world --model world/base --output runs/failures
  repair-hf mine --pairs annotations.json --image-folder train2014 --model openai/clip-vit-base-patch32 \\
      --output runs/failures
  repair-hf mine --pairs runs/world --model world/base --wrong mistakes.csv --output runs/own
  accelerate launch --config_file recipes/accelerate/cpu-2.yaml -m repair_hf mine --pairs runs/world \\
      --model world/base --output runs/failures"""

LOOK_FOLDER, LOOK_QUERIES = "runs/look", 1000  # of a first look


@dataclass
class MineStageOptions(StageOptions):
    """Where the failures are written."""

    _argument_group_name = "stage"

    output: str | None = opt(  # type: ignore[assignment]
        None,
        f"Folder to write the result to. Default: a first look at {LOOK_QUERIES:,} queries, in {LOOK_FOLDER}.",
        neutral=True,
        main=True,
    )


OPTIONS = (PairsOptions, MineStageOptions, MiningOptions, PriceOptions)


def run(
    pairs_options: PairsOptions,
    stage: StageOptions,
    options: MiningOptions,
    prices: PriceOptions = PriceOptions(),  # noqa: B008  # never changed
) -> None:
    """Mine false positives, or print how much there is to mine."""
    from repair_hf.mining.mine import Mining
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.runtime.processes import is_first

    pairs = load_wanted(pairs_options)
    is_look = stage.output is None
    folder = stage.output or LOOK_FOLDER
    if is_look and options.max_queries is None and options.wrong is None:
        options = replace(options, max_queries=LOOK_QUERIES)
    mining = Mining(options.model, pairs, options, output=folder)
    if stage.dry_run:
        print(f"{len(pairs.images):,} images and {len(pairs.captions):,} captions would be embedded and mined.")
        return
    mining.run()
    if not is_first():
        return
    _print_summary(mining.summary)
    print(f"-> {folder}")
    retriever = ["--model", options.model, *flags(changed(options.of_encoder))]
    words = [*flags(changed(pairs_options)), *retriever, "--failures", folder]
    output = ["--output", unused("runs/records")]
    if is_look:
        named = {name: getattr(prices, name) for name in fields_of(prices)}
        draw(folder, ShowOptions(**named), pairs)
        return suggest("synthesize", *words, "--limit", "100", "--llm", prices.llm, "--editor", prices.editor, *output)
    suggest("show", folder, why="Look at the failures before you pay for their repair:")
    suggest("synthesize", *words, "--llm", "...", "--editor", "...", *output)


def _print_summary(summary: dict[str, Any]) -> None:
    from repair_hf.analysis.tables import SIDES

    rows = []
    for direction, counts in summary["directions"].items():
        share = f"({counts['failed'] / counts['queries']:.1%})"
        gaps = [f"{counts[name]:+.3f}" for name in ("gap_25", "gap_50", "gap_75")]
        rows.append([direction, counts["queries"], counts["failed"], share, counts["false_positives"], *gaps])
    print_table(("", "queries", "missed", "", "rows", "gap: 25%", "median", "75%"), rows)
    if recall := summary.get("recall"):
        shares = ", ".join(f"{share:.1%} ({SIDES[direction]})" for direction, share in recall.items())
        print(
            f"{summary['search']} found {shares} of the false positives of an exact search. Ranks are lower bounds: "
            "candidates that the index missed are not counted."
        )
    if wrong := summary.get("wrong"):
        print(
            f"{wrong['rows']:,} rows of your own: {wrong['unknown']:,} name nothing in the pairs, and "
            f"{wrong['known_matches']:,} are known matches; these are left out."
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
