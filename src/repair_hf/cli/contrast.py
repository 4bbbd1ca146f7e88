"""`repair-hf contrast`: make a contrast set, a fair test of retrievers that no retriever chose.

For each drawn picture the LLM changes one detail of a caption, and the editor makes the picture that fits the change.
Both pictures are checked with both captions. The folder has the columns of Winoground, or without an editor those of
SugarCrepe; it also holds the ledger of what was paid, the candidate images and `dropped.parquet`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repair_hf.cli.evaluate import TestPairsOptions
from repair_hf.cli.subcommands import print_table, suggest, unused
from repair_hf.runtime.options import StageOptions, changed, flags
from repair_hf.synthesis.options import ContrastEditorOptions, ContrastOptions, LLMOptions

EPILOG = """examples:
  repair-hf contrast --pairs runs/world --llm world/oracle --editor world --output runs/contrast
  repair-hf contrast --pairs annotations.json --image-folder val2014 --llm gemini/gemini-3.5-flash-lite \\
      --max-items 500 --output runs/contrast --dry-run

Take a split that no model was trained on. You can stop it at any time: the same command resumes, and pays for no
answer that has arrived."""

OPTIONS = (TestPairsOptions, StageOptions, LLMOptions, ContrastEditorOptions, ContrastOptions)


def run(
    pairs_options: TestPairsOptions,
    stage: StageOptions,
    llm: LLMOptions,
    editor: ContrastEditorOptions,
    options: ContrastOptions,
) -> None:
    """Make the set, or print an estimate of calls and cost."""
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.runtime.run_folder import RunStopped
    from repair_hf.synthesis.contrast import ContrastSet
    from repair_hf.synthesis.models import check_models

    wanted = ContrastSet(load_wanted(pairs_options), llm, editor, options, output=stage.output)
    if stage.dry_run:
        _print_estimate(wanted)
        return check_models(llm, editor)
    was_done = wanted.is_done
    try:
        summary = wanted.run()
    except (RunStopped, KeyboardInterrupt):
        if (made := wanted.stage.summary) is not None:
            print(f"{made['kept']:,} cases are written; {made['open']:,} items are still open   -> {stage.output}")
        raise
    _print_summary(summary)
    what = "already finished, nothing was done" if was_done else f"took {summary['seconds']:,.0f} s"
    print(f"contrast {what}   -> {stage.output}")
    words = [*flags(changed(pairs_options)), "--contrast", stage.output, "--output", unused("runs/evaluate")]
    why = "Name the base first, then a training without records, then one with records, of as many steps:"
    suggest("evaluate", "BASE", "PLAIN", "REPAIRED", *words, why=why)


def _print_estimate(wanted: Any) -> None:
    from repair_hf.analysis import costs

    llm, editor = wanted.llm, wanted.editor
    stages = wanted.estimate(*costs.list_prices(llm, editor))
    rows = [
        (stage.stage, stage.llm_calls, stage.image_calls, *costs.estimated(stage))
        for stage in (*stages, costs.add_stages(stages))
    ]
    print_table(("", "LLM calls", "images", "K tokens in", "K out", "dollars"), rows)
    print(
        f"{len(wanted.items):,} items, at most: as if every one passed the audit. Tokens: counted on a sample; images "
        "by one rule for all models but Gemini's."
    )
    print(costs.whole_price(costs.items_of(stages, llm, editor)))


def _print_summary(summary: Mapping[str, Any]) -> None:
    from repair_hf.synthesis.contrast_items import REASONS

    print_table(("changed detail", "cases"), [*summary["kinds"].items(), ("all", summary["kept"])])
    for reason, count in summary["dropped"].items():
        print(f"{count:,} items dropped as {reason}: {REASONS[reason]}.")
