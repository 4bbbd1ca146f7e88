"""`repair-hf analyze`: write a report on a run, on mined failures, or on a Hub dataset of records.

The report is one self-contained page, `report.html`, with its tables as CSV beside it. With `--llm` a language model
first labels the image instructions by error type. Its answers go into the ledger of the run, so they are paid for once
and count among the run's costs.

It prints whether repair helped, and what people judged (`repair-hf annotate`): the audit's precision, recall,
accuracy and Cohen's kappa, the criteria that edits meet, and how edits fail.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repair_hf.analysis.options import LabelOptions, SourceOptions
from repair_hf.cli.subcommands import print_table, suggest
from repair_hf.runtime.options import Bounded, UserError, need, opt

EPILOG = """examples:
  repair-hf analyze runs/failures
  repair-hf analyze runs/demo
  repair-hf analyze runs/demo --llm world/oracle --output report
  repair-hf analyze me/photos-repair --pairs data/mine --output report"""

ANSWER_TOKENS = 20  # tokens of a label, for the estimate


@dataclass
class AnalyzeOptions(Bounded):
    run: str = need("Folder of `repair-hf mine`, `synthesize`, `run` or `demo`, or records on the Hub.")
    output: str | None = opt(None, "Folder of the report. Default: `report` in the run's folder.", main=True)
    dry_run: bool = opt(
        False, "Print how many LLM calls --llm would make and what they would cost, then stop.", main=True
    )
    seed: int = opt(0, "Seed of the sample of records shown.", main=True)
    calls: bool = opt(False, "Print all paid calls of the run's ledger as JSON Lines, then stop.", main=True)


OPTIONS = (AnalyzeOptions, LabelOptions, SourceOptions)


def run(options: AnalyzeOptions, llm: LabelOptions, source: SourceOptions) -> None:
    """Label image instructions if `--llm` is given, then write the report."""
    from repair_hf.analysis.analyze import analyze, label, report_folder
    from repair_hf.analysis.mined import is_mined
    from repair_hf.analysis.people.findings import people_findings
    from repair_hf.analysis.report import PAGE
    from repair_hf.analysis.run_data import gather, synthesis_folders

    if options.calls:
        return _print_calls(options.run)
    of_mine = is_mined(options.run)
    if options.dry_run and (of_mine or llm.llm is None):
        raise UserError(
            "`dry_run` estimates the cost of labelling records; give --llm, or leave it out: a report costs nothing."
        )
    if options.dry_run:
        return _print_estimate(gather(options.run), llm)
    if llm.llm is not None and not of_mine:
        _print_labels(label(gather(options.run), llm))
        llm.llm = None
    findings = analyze(options.run, options.output, pairs=source.pairs, seed=options.seed, llm=llm.llm)
    folders = synthesis_folders(Path(options.run))
    for finding in (findings[0], *([] if of_mine else people_findings(folders))):
        print(f"\n{finding.title}")
        if finding.table is not None:
            print_table(*finding.rows)
        print(finding.note)
    print(f"analyze   {options.run}   -> {report_folder(options.run, options.output) / PAGE}")
    if of_mine:
        suggest("show", options.run)
    elif folders:
        suggest("annotate", "edits", options.run if len(folders) == 1 else str(folders[-1]))


def _print_calls(run: str) -> None:
    from repair_hf.analysis.run_data import synthesis_folders
    from repair_hf.llm.ledger_file import read_calls

    for call in read_calls(*(synthesis_folders(Path(run)) or [Path(run)])):
        print(json.dumps(call))


def _print_estimate(data: Any, llm: LabelOptions) -> None:
    from repair_hf.analysis.analyze import instructions
    from repair_hf.analysis.error_labels import ask_about
    from repair_hf.llm.calls import format_dollars
    from repair_hf.llm.cost import price_per_token
    from repair_hf.synthesis.models import find_llm

    place, name = find_llm(llm)
    prices = price_per_token(name) if place == "litellm" else (0.0, 0.0)
    for folder, wanted in instructions(data).items():
        letters = sum(len(str(message["content"])) for row in wanted for message in ask_about(row))
        cost = None if prices is None else letters / 4 * prices[0] + len(wanted) * ANSWER_TOKENS * prices[1]
        tokens = f"about {letters / 4000:,.1f} K tokens in"
        print(f"label   {len(wanted):,} calls, {tokens}, about {format_dollars(cost)}   {folder}")


def _print_labels(done: Any) -> None:
    from repair_hf.analysis.run_data import LABELS
    from repair_hf.llm.calls import format_dollars
    from repair_hf.llm.cost import known_dollars

    for folder, (count, wanted, use) in done.items():
        new, replayed, paid = (
            (use.calls, use.replayed, format_dollars(known_dollars([use]))) if use else (0, 0, "$0.00")
        )
        print(
            f"label   {count:,} of {wanted:,} image instructions; {new:,} answers are new, {replayed:,} were there, "
            f"{paid}   -> {folder / LABELS}"
        )
