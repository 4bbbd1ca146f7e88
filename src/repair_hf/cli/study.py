"""`repair-hf study`: compare methods on the same data, retriever, LLM, editor and budget, in one table.

Without `--pairs` it runs in the toy world. Writes `study.md` with its tables as CSV, `results.parquet` (a row per
training), a folder of each dataset (what methods train on, made once), `ledger.sqlite` and `candidates/` (what was
paid). The same command resumes and pays nothing twice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from functools import partial
from typing import Any

from repair_hf.cli.subcommands import print_table
from repair_hf.runtime.processes import leave_launcher
from repair_hf.study.options import ListOptions, StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions

EPILOG = """examples:
  repair-hf study --list
  repair-hf study --size tiny --methods negclip repair --output runs/study-tiny
  repair-hf study --config recipes/study/toy.yaml
  repair-hf study --config recipes/study/flickr30k.yaml --dry-run
  repair-hf study --config recipes/study/both.yaml --dry-run
  repair-hf study --pairs data/mine --model openai/clip-vit-base-patch32 --records runs/records --test-split validation

You can stop it at any time: the same command resumes. You can add --methods, --seeds or --budgets later.
For several GPUs use `accelerate launch --num_processes 4 -m repair_hf study ...`, or run the command several times:
each process skips what another is working on. With --batch, type the command again until it prints the tables."""

OPTIONS = (ListOptions, StudyOptions, StudyPairsOptions, StudyLLMOptions, StudyEditorOptions)


def run(
    listing: ListOptions,
    options: StudyOptions,
    pairs: StudyPairsOptions,
    llm: StudyLLMOptions,
    editor: StudyEditorOptions,
) -> None:
    """Run the study, or print an estimate of calls and cost. Of several processes, each works by itself."""
    if listing.list:
        from repair_hf.study.methods.registry import load_methods

        return print("\n".join(load_methods(options.swaps or ())))
    with ExitStack() as stack:
        is_first, count = leave_launcher()
        if not is_first:  # the first process prints for all
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        _study(options, pairs, _part_of_limits(llm, count), editor)


def _part_of_limits(llm: StudyLLMOptions, processes: int) -> StudyLLMOptions:
    """Return a process's part of a provider's limits per minute."""
    limits = {name: vars(llm)[name] for name in ("requests_per_minute", "tokens_per_minute")}
    return replace(llm, **{name: max(most // processes, 1) for name, most in limits.items() if most is not None})


def _study(options: StudyOptions, pairs: StudyPairsOptions, llm: StudyLLMOptions, editor: StudyEditorOptions) -> None:
    from repair_hf.study.run import check, chosen, lacking, run_cells
    from repair_hf.study.setting import open_settings
    from repair_hf.study.tables import COSTS

    settings = open_settings(options, pairs, llm, editor)
    wanted, missing = chosen(settings), lacking(settings)
    if missing and not (options.methods or options.records):
        print("left out: " + ", ".join(f"{name} (needs {lacks})" for name, lacks in missing.items()))
    if options.dry_run:
        check(settings, wanted)
        return _print_price(settings, wanted)
    sections = run_cells(settings, wanted, tell=partial(print, flush=True))
    for section in sections:
        if section.name == "left_out":
            print(f"{section.title}: {section.note}")
        elif section.name == "summary" and section.table is not None:
            # what fits 80 columns: `study.md` has the other gains, and what each method paid for
            scores = [head for head in section.table.columns if not head.endswith(("gain", *COSTS))]
            heads = [*scores, *(head for head in section.table.columns if head.startswith("both"))]
            print(f"\n{section.title}")
            print_table(heads, section.table[heads].to_numpy().tolist())
            print(section.note)
    print(f"\n-> {settings[0].output / 'study.md'}")


def _print_price(settings: Sequence[Any], wanted: Sequence[str]) -> None:
    from repair_hf.study.prices import HEADS, Prices, price_notes, price_table

    items: list[Any] = []
    for setting in settings:
        prices = Prices(setting)
        rows, more = price_table(prices, wanted)
        items += more
        batch = " of the batch API" if setting.models[None].llm.batch else ""
        print(f"\nEstimated calls and cost: {setting.name}, {prices.images:,} images, {prices.captions:,} captions")
        print_table(HEADS, rows)
    print(
        "Calls: at most, as if every failure passed the audit, for each method alone; all together counts shared "
        f"calls once. Dollars: list prices{batch}; local models cost time only."
    )
    print("\n".join(price_notes(settings, wanted, items)))
