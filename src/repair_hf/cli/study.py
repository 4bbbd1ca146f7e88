"""`repair-hf study`: compare methods on the same data, retriever, LLM, editor and budget, in one table.

Without `--pairs` it runs in the toy world. Writes `study.md` with its tables as CSV, `results.parquet` (a row per
training), a folder of each dataset (what methods train on, made once), `ledger.sqlite` and `candidates/` (what was
paid). The same command resumes and pays nothing twice.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from functools import partial
from typing import Any

from repair_hf.cli.subcommands import print_table
from repair_hf.runtime.options import UserError
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

ON_RECORDS = ["repair", "repair-paper"]  # beside plain training
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
    from repair_hf.study.loop import Study
    from repair_hf.study.setting import settle

    logging.getLogger("repair_hf.training").setLevel(logging.WARNING)  # a line for each cell is enough
    setting = settle(options, pairs, llm, editor)
    wanted = _wanted(options.methods or (ON_RECORDS if options.records else []), setting)
    if options.dry_run:
        _check(setting, wanted)
        return _print_price(setting, wanted)
    study = Study(setting, wanted, tell=partial(print, flush=True))
    if not options.table:
        _check(setting, wanted)
        study.run()
    _write(study)


def _write(study: Any) -> None:
    from repair_hf.study.tables import tables_of, write_page

    sections = tables_of(study.plan)
    write_page(sections, study.setting)
    for section in sections:
        if section.name == "left_out":
            print(f"{section.title}: {section.note}")
        elif section.name == "summary":
            heads = [head for head in section.table.columns if not head.endswith("gain") or head.startswith("both")]
            print(f"\n{section.title}")
            print_table(heads, section.table[heads].to_numpy().tolist())
            print(section.note)
    print(f"\n-> {study.setting.output / 'study.md'}")


def _check(setting: Any, wanted: Sequence[str]) -> None:
    """Report a missing or damaged split, model or package before anything is paid, also in a dry run."""
    from repair_hf.evaluation.words import load_parser
    from repair_hf.study.methods.method import Baseline
    from repair_hf.study.methods.registry import check_installed
    from repair_hf.synthesis.models import check_editor, check_llm

    methods = [setting.methods[name] for name in wanted]
    check_installed(methods)
    options = setting.options
    for data in setting.datasets.values():
        if data.options.records:
            data.records  # noqa: B018  # loads and checks them
        if data.world is None:
            for split in (options.test_split, *([options.validation_split] if options.tune else [])):
                data.held_out(split)
        asking = [method for method in methods if not setting.takes_records(method, data)]
        if any("spacy_model" in method.means for method in asking) and setting.spacy_model != "world":
            load_parser(setting.spacy_model, noun_chunks=True)
        for method in asking:
            models = setting.models_of(method)
            if "llm" in method.means:
                check_llm(models.llm)
            if "editor" in method.means:
                check_editor(models.editor, from_text=isinstance(method, Baseline) and method.draws)


def _print_price(setting: Any, wanted: Sequence[str]) -> None:
    from repair_hf.study.prices import HEADS, Prices, price_notes, price_table

    items: list[Any] = []
    for data in setting.datasets.values():
        prices = Prices(setting, data)
        rows, more = price_table(prices, wanted)
        items += more
        batch = " of the batch API" if setting.models[None].llm.batch else ""
        print(f"\nEstimated calls and cost: {data.name}, {prices.images:,} images, {prices.captions:,} captions")
        print_table(HEADS, rows)
    print(
        "Calls: at most, as if every failure passed the audit, for each method alone; all together counts shared "
        f"calls once. Dollars: list prices{batch}; local models cost time only."
    )
    print("\n".join(price_notes(setting, wanted, items)))


def _wanted(names: Sequence[str], setting: Any) -> list[str]:
    """Return the methods of the study: those that are named, or all whose required options are set."""
    for name in names:
        if name not in setting.methods:
            near = difflib.get_close_matches(name, setting.methods, n=1)
            meant = f"Did you mean `{near[0]}`? " if near else ""
            raise UserError(f"`methods` has {name!r}, which is unknown. {meant}See `repair-hf study --list`.")
    lacks = {
        name: sorted({lack for data in setting.datasets.values() for lack in setting.lacks(method, data)})
        for name, method in setting.methods.items()
    }
    for name in names:
        if lacks[name]:
            raise UserError(f"The method `{name}` needs {_quoted(lacks[name])}; set it, or leave the method out.")
    if names:
        return list(names)
    if missing := {name: options for name, options in lacks.items() if options}:
        print("left out: " + ", ".join(f"{name} (needs {_quoted(options)})" for name, options in missing.items()))
    return [name for name in setting.methods if not lacks[name]]


def _quoted(options: Sequence[str]) -> str:
    return " and ".join(f"`{option}`" for option in options)
