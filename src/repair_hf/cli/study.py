"""`repair-hf study`: compare methods on the same data, retriever, LLM, editor and budget, in one table.

Without `--pairs` it runs in the toy world. Writes `study.md` with its tables as CSV and its charts, `products/` (the
data that methods train on, made once) and `cells/` (a folder per training). The same command resumes and pays nothing
twice.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from repair_hf.cli.subcommands import print_command, print_table, run_command, suggest
from repair_hf.evaluation.compositional import CompositionalOptions
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.options import UserError, flags
from repair_hf.runtime.processes import leave_launcher
from repair_hf.study.options import (
    ListOptions,
    Size,
    StudyEditorOptions,
    StudyLLMOptions,
    StudyOptions,
    StudyPairsOptions,
    size_of,
)

EPILOG = """examples:
  repair-hf study --list
  repair-hf study --size tiny --methods negclip repair --output runs/study-tiny
  repair-hf study --config recipes/study/toy.yaml
  repair-hf study --config recipes/study/flickr30k.yaml --dry-run
  repair-hf study --config recipes/study/both.yaml --dry-run
  repair-hf study --pairs data/mine --model openai/clip-vit-base-patch32 --records runs/records --test-split validation

You can stop it at any time: the same command resumes. You can add --methods, --seeds or --shares later.
For several GPUs use `accelerate launch --num_processes 4 -m repair_hf study ...`, or run the command several times:
each process skips what another is working on. With --batch, type the command again until it prints the tables."""

ON_RECORDS = ["repair", "repair-paper"]  # beside plain training
OPTIONS = (ListOptions, StudyOptions, StudyPairsOptions, StudyLLMOptions, StudyEditorOptions, CompositionalOptions)


def run(*options: Any) -> None:
    """Run the study, or print an estimate of calls and cost. Of several processes, each works by itself."""
    with ExitStack() as stack:
        is_first, count = leave_launcher()
        if not is_first:  # the first process prints for all
            stack.enter_context(redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
        given: list[Any] = [
            _part_of_limits(each, count) if isinstance(each, StudyLLMOptions) else each for each in options
        ]
        _study(*given)


def _part_of_limits(llm: StudyLLMOptions, processes: int) -> StudyLLMOptions:
    """Return a process's part of a provider's limits per minute."""
    limits = {name: vars(llm)[name] for name in ("requests_per_minute", "tokens_per_minute")}
    return replace(llm, **{name: max(most // processes, 1) for name, most in limits.items() if most is not None})


def _study(
    listing: ListOptions,
    options: StudyOptions,
    pairs_options: StudyPairsOptions,
    llm: StudyLLMOptions,
    editor: StudyEditorOptions,
    compositional: CompositionalOptions,
) -> list[Any]:
    """Return what a dry run has priced."""
    from repair_hf.study.methods.registry import load_methods
    from repair_hf.study.plan import count_trainings
    from repair_hf.study.running import Study
    from repair_hf.study.setting import settle
    from repair_hf.study.swaps import TOY_SWAPS
    from repair_hf.study.tuning import SearchSpace

    logging.getLogger("repair_hf.training").setLevel(logging.WARNING)  # the cells hold the loss curves
    if listing.list:
        print("\n".join(load_methods(dict.fromkeys([*TOY_SWAPS, *(options.swaps or {})]))))
        return []
    if options.datasets is not None:
        return _run_each(options, pairs_options, llm, editor, compositional)
    size = size_of(options, pairs_options)
    setting = settle(options, pairs_options, llm, editor, compositional, run_command)
    methods = load_methods(setting.swaps)
    wanted = _wanted(options.methods or (ON_RECORDS if options.records else []), methods, setting)
    _check(setting, [methods[name] for name in wanted], options, is_drawn=size.world is not None)
    space = SearchSpace(
        options.learning_rates or size.learning_rates,
        options.epochs or size.epochs,
        options.grid_weights or size.grid_weights,
    )
    points = [*options.shares, *options.sample_sizes]
    study = Study(setting, methods, wanted, space, tune=options.tune, points=points, tell=print)
    if options.dry_run:
        return _dry_run(setting, size, [methods[name] for name in wanted], count_trainings(study, options.seeds))
    if size.world is not None:
        with setting.sharing.lock("world"):
            run_command("world", "build", "--output", setting.pairs_options.pairs, *flags(size.world))
    _run(study, setting, options)
    return []


def _check(setting: Any, methods: Sequence[Any], options: StudyOptions, *, is_drawn: bool) -> None:
    """Report a missing or damaged split, model or package before anything is paid, also in a dry run."""
    from repair_hf.evaluation.words import load_parser
    from repair_hf.study.methods.registry import check_installed
    from repair_hf.synthesis.models import check_editor, check_llm
    from repair_hf.synthesis.synthesize import check_models

    if not is_drawn:
        for split in (setting.split, *([setting.validation_split] if options.tune else [])):
            setting.held_out(split)
    if options.table:  # nothing is made or trained
        return
    check_installed(methods)
    if any(setting.has_records(method) for method in methods):
        setting.given_records  # noqa: B018  # loads and checks them
    means = set().union(*(setting.needs(method) for method in methods))
    if setting.spacy_model != "world" and "spacy_model" in means:
        load_parser(setting.spacy_model, noun_chunks=True)
    if "llm" in means:
        check_llm(setting.llm)
    if "editor" in means:
        check_editor(setting.editor, from_text=any(method.draws for method in methods))
    for name in sorted(setting.swapped(methods)):
        check_models(setting.swaps[name].llm, setting.swaps[name].editor)
    for model in {setting.model, *map(setting.model_of, methods)}:
        setting.digest(model)


def _run_each(
    options: StudyOptions, pairs_options: StudyPairsOptions, llm: StudyLLMOptions, *others: Any
) -> list[Any]:
    """Run a study of each data set, one after the other, and write one table, or print one price, of all."""
    from repair_hf.analysis.costs import whole_price
    from repair_hf.llm.batches import BatchesOpen
    from repair_hf.study.methods.registry import load_methods
    from repair_hf.study.multi_dataset import words_of_each, write_across
    from repair_hf.study.setting import settle

    output = Path(options.output)
    words = words_of_each(options, (pairs_options, llm, *others))
    is_toy = False
    for name, typed in words.items():  # report a mistake in the last one before the first one runs
        try:
            _, own, own_pairs, own_llm, editor, sets = parse(OPTIONS, typed, "repair-hf study")
            setting = settle(own, own_pairs, own_llm, editor, sets, run_command)
            _refuse(own.methods, load_methods(setting.swaps), setting)
        except UserError as error:
            raise UserError(f"`datasets` {name}: {error}") from error
        is_toy |= setting.is_toy
    done: list[str] = []
    with_provider: dict[Path, Any] = {}
    priced: list[Any] = []
    for name, typed in words.items():
        typed += ["--ledger", llm.ledger or str(output)]
        if options.dry_run:
            print()
            print_command("study", *typed)
            priced += _study(*parse(OPTIONS, typed, "repair-hf study"))
            continue
        try:
            run_command("study", *typed)
        except BatchesOpen as stop:
            with_provider |= stop.open
            continue
        done.append(name)
        across = write_across(output, done, is_toy=is_toy)
    if with_provider:
        raise BatchesOpen(with_provider)
    if options.dry_run:
        print(f"\nAll data sets\n{whole_price(priced)}")
    elif across.table is not None:
        table = across.table
        _print(across.title, list(table.columns), table.to_numpy().tolist(), f"-> {output / 'study.md'}")
    return priced


def _run(study: Any, setting: Any, options: StudyOptions) -> None:
    from repair_hf.study.report import write_report
    from repair_hf.study.tables import Differences

    differences = Differences(setting)
    for count, results in enumerate(study.run(options.seeds), start=1):
        sections = write_report(results, differences, options.paper)
        print(f"\nafter {count} of {options.seeds} seeds   -> {setting.output / 'study.md'}")
    for section in sections:
        table = section.table
        if section.name in ("regime", "scores", "gains") and table is not None and len(table):
            _print(section.title, list(table.columns), table.to_numpy().tolist(), section.note)
    print(f"\n-> {setting.output / 'study.md'}")
    if (records := setting.output / "products" / "repair-records").is_dir():
        suggest("show", str(records))


def _dry_run(setting: Any, size: Size, methods: Sequence[Any], trainings: int) -> list[Any]:
    """Print calls and dollars of each method and of all together, and the plan by GPUs; return the price's items."""
    import tempfile

    from repair_hf.analysis.costs import whole_price
    from repair_hf.llm.calls import format_dollars
    from repair_hf.llm.ledger_file import paid_by
    from repair_hf.pairs.dataset import load_pairs
    from repair_hf.study import estimates
    from repair_hf.study.plan import HEADS, bill, plan_rows
    from repair_hf.study.spending import products_in
    from repair_hf.toyworld.corpus import CAPTIONS, build_world

    with tempfile.TemporaryDirectory() as folder:
        if size.world is None:
            sample = setting.pairs
            whole = estimates.Corpus(len(sample.images), len(sample.captions))
        else:  # estimate from a few pictures of the world that would be drawn
            sample = load_pairs(build_world(folder, splits={"train": estimates.SAMPLE}))
            whole = estimates.Corpus(size.world["train"], CAPTIONS * size.world["train"])
        estimator = estimates.Estimator(setting, whole, sample)
        needs = {method.name: estimator.of(method) for method in methods}
        needs["all together"] = estimator.of_all(methods)
        plan, price = plan_rows(estimator, methods, trainings), bill(estimator.by_models(methods))
    rows = [
        [name, f"{each.llm_calls:,.0f}", f"{each.image_calls:,.0f}", f"{each.prompt_tokens / 1000:,.0f}",
         f"{each.completion_tokens / 1000:,.0f}", format_dollars(each.dollars)]
        for name, each in needs.items()
    ]  # fmt: skip
    footer = (
        f"{whole.images:,} images, {whole.captions:,} captions. Calls: at most, as if every failure passed the audit, "
        "for each method alone; all together counts shared calls once. Dollars: list prices"
        f"{' of the batch API' if setting.llm.batch else ''}; local models cost time only."
    )
    heads = ["method", "LLM calls", "images", "K tokens in", "K out", "dollars"]
    _print("Estimated calls and cost", heads, rows, footer)
    if size.world is None:
        _print("Plan for all together", HEADS, plan, _basis(setting, methods, trainings))
    spent, answers = paid_by(products_in(setting.output / "products"))
    if answers:
        print(
            f"{setting.output} already holds {answers:,} answers, for {format_dollars(spent)}; they are not paid "
            "again."
        )
    print(whole_price(price))
    return price


def _basis(setting: Any, methods: Sequence[Any], trainings: int) -> str:
    """Say what the plan assumes."""
    from repair_hf.study.plan import CAPTIONS_PER_HOUR, REQUESTS_PER_MINUTE, SECONDS_PER_IMAGE, STEPS, rate

    limit = setting.llm.requests_per_minute
    requests = f"{limit or REQUESTS_PER_MINUTE:,} requests per minute{'' if limit else ' (assumed)'}"
    if not any(rate(setting.models_of(method).llm) for method in methods):
        requests = "runs here, in time that is not counted"
    elif setting.llm.batch:
        requests = "a batch may take a day for each step, whatever the hours here"
    return (
        f"Assumed, not measured: {SECONDS_PER_IMAGE:g} second per {STEPS} steps of a local editor, and one hour per "
        f"{CAPTIONS_PER_HOUR:,} captions for each of {trainings:,} trainings (plain ones at equal compute come on "
        f"top), divided by the GPUs. LLM: {requests}. GB: all candidate images as PNG, and decoded pixels."
    )


def _wanted(names: Sequence[str], methods: dict[str, Any], setting: Any) -> list[str]:
    """Return the methods of the study: those that are named, or all whose required options are set."""
    _refuse(names, methods, setting)
    if names:
        return list(names)
    lacks = {name: setting.lacks(method) for name, method in methods.items()}
    if missing := {name: options for name, options in lacks.items() if options}:
        print("left out: " + ", ".join(f"{name} (needs {_quoted(options)})" for name, options in missing.items()))
    return [name for name in methods if not lacks[name]]


def _refuse(names: Sequence[str], methods: dict[str, Any], setting: Any) -> None:
    """Raise an error for an unknown method, or one whose required options are not set."""
    if unknown := [name for name in names if name not in methods]:
        near = difflib.get_close_matches(unknown[0], methods, n=1)
        meant = f"Did you mean `{near[0]}`? " if near else ""
        raise UserError(f"`methods` has {unknown[0]!r}, which is unknown. {meant}See `repair-hf study --list`.")
    for name in names:
        if lacks := setting.lacks(methods[name]):
            raise UserError(f"The method `{name}` needs {_quoted(lacks)}; set it, or leave the method out.")


def _quoted(options: Sequence[str]) -> str:
    return " and ".join(f"`{option}`" for option in options)


def _print(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], footer: str) -> None:
    print(f"\n{title}")
    print_table(heads, rows)
    print(footer)
