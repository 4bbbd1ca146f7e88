"""`repair-hf analyze`: write a report on a run, on mined failures, or on a Hub dataset of records.

The report is one self-contained page, `report.html`, with its charts as PNG and their numbers as CSV beside it. With
`--llm` a language model first labels the image instructions by error type. Its answers go into the ledger of the
run, so they are paid for once and count among the run's costs.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repair_hf.cli.subcommands import print_table, suggest
from repair_hf.runtime.options import Bounded, SourceOptions, UserError, need, opt
from repair_hf.synthesis.models import LLMOptions

EPILOG = """examples:
  repair-hf analyze runs/failures
  repair-hf analyze runs/demo
  repair-hf analyze runs/demo --llm world/oracle --output report
  repair-hf analyze me/photos-repair --pairs annotations.json --image-folder train2014 --output report"""

ANSWER_TOKENS = 20  # tokens of a label, for the estimate


@dataclass
class AnalyzeOptions(Bounded):
    run: str = need("Folder of `repair-hf mine`, `synthesize`, `run` or `demo`, or records on the Hub.")
    output: str | None = opt(None, "Folder of the report. Default: `report` in the run's folder.")
    watch: int | None = opt(None, "Rewrite the report every so many seconds, until interrupted.", least=1)
    dry_run: bool = opt(False, "Print how many LLM calls --llm would make and what they would cost, then stop.")
    seed: int = opt(0, "Seed of the sample of records shown.")
    calls: bool = opt(False, "Print all paid calls of the run's ledger as JSON Lines, then stop.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output is None and Path(self.run).is_dir():
            self.output = str(Path(self.run) / "report")


@dataclass
class LabelOptions(LLMOptions):
    """The LLM that labels image instructions; none by default."""

    llm: str | None = opt(  # type: ignore[assignment]
        None, "LLM that labels each image instruction with an error type; ids as for `repair-hf synthesize`."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch:
            raise UserError("`batch` works with `repair-hf synthesize` only; leave it out.")


OPTIONS = (AnalyzeOptions, LabelOptions, SourceOptions)
BRIEF = "run output watch pairs image_folder llm max_usd dry_run".split()


def run(options: AnalyzeOptions, llm: LabelOptions, source: SourceOptions) -> None:
    """Label image instructions if `--llm` is given, then write the report."""
    from repair_hf.analysis.answers import answer
    from repair_hf.analysis.mined import is_mined
    from repair_hf.analysis.report import write_report
    from repair_hf.analysis.run_data import gather
    from repair_hf.analysis.run_findings import run_findings
    from repair_hf.pairs.dataset import load_wanted

    if options.calls:
        return _print_calls(options.run)
    if is_mined(options.run):
        return _analyze_mined(options, llm, source)
    if options.dry_run and llm.llm is None:
        raise UserError(
            "`dry_run` estimates the cost of labelling; give --llm, or leave it out: a report costs nothing."
        )
    if llm.llm is not None:
        _label(gather(options.run), llm, options.dry_run)
    if options.dry_run:
        return
    if options.output is None:
        raise UserError(
            f"{options.run} is not a local folder; give the folder of a run, or for records on the Hub also --output."
        )
    pairs = None if source.pairs is None else load_wanted(source)
    while True:
        start, material = time.perf_counter(), gather(options.run)
        page = write_report(
            material, Path(options.output), run_findings(material, pairs), answer(material), seed=options.seed
        )
        size = page.stat().st_size / 2**20
        print(
            f"analyze   {len(material.kept):,} records, {time.perf_counter() - start:.0f} s, {size:.1f} MB   -> {page}"
        )
        if options.watch is None:
            break
        time.sleep(options.watch)
    if material.folders:
        suggest("annotate", "edits", options.run if len(material.folders) == 1 else str(material.folders[-1]))


def _print_calls(run: str) -> None:
    from repair_hf.analysis.run_data import synthesis_folders
    from repair_hf.llm.ledger_file import read_calls

    for call in read_calls(*(synthesis_folders(Path(run)) or [Path(run)])):
        print(json.dumps(call))


def _analyze_mined(options: AnalyzeOptions, llm: LabelOptions, source: SourceOptions) -> None:
    """Report on a folder of `repair-hf mine`."""
    from repair_hf.analysis.mined import load_mined, mined_findings, sample_failures
    from repair_hf.analysis.report import SAMPLES, cells, write_findings
    from repair_hf.pairs.dataset import load_wanted

    for name, given in {"llm": llm.llm, "watch": options.watch, "dry_run": options.dry_run}.items():
        if given:
            raise UserError(f"`{name}` is for records, and {options.run} holds mined failures. Leave it out.")
    mined = load_mined(options.run, None if source.pairs is None else load_wanted(source))
    findings = mined_findings(mined)
    heads, *rows = cells(findings[0])
    print_table(heads, rows, labels=2)
    sample, count = sample_failures(mined, n=SAMPLES, seed=options.seed), f"{len(mined.failures):,} false positives"
    folder = Path(str(options.output))
    page = write_findings(folder, "What was mined", f"{mined.folder.name} · {count}", findings, sample.rows)
    print(f"analyze   {count}   -> {page}")
    suggest("show", options.run)


def _label(material: Any, llm: LabelOptions, is_rehearsal: bool) -> None:
    """Ask for the error types of each round's image instructions."""
    from repair_hf.analysis.costs import dollars
    from repair_hf.analysis.error_labels import ask_about, label_images
    from repair_hf.analysis.run_data import LABELS
    from repair_hf.llm.cost import known_dollars, price_per_token
    from repair_hf.records.dataset import load_kept
    from repair_hf.synthesis.models import find_llm, open_chat, open_ledger

    if not material.folders:
        raise UserError(f"{material.name} is not a local run, so labels cannot be stored; leave out --llm.")
    for folder in material.folders:
        wanted = (
            load_kept(folder, decode=False)
            .select_columns(["direction", "record_id", "q_text", "edit_instruction"])
            .to_list()
        )
        wanted = [row for row in wanted if row["direction"] == "t2i"]
        if is_rehearsal:
            place, name = find_llm(llm)
            letters = sum(len(str(message["content"])) for row in wanted for message in ask_about(row))
            prices = price_per_token(name, batch=llm.batch) if place == "litellm" else (0.0, 0.0)
            cost = None if prices is None else letters / 4 * prices[0] + len(wanted) * ANSWER_TOKENS * prices[1]
            print(
                f"label   {len(wanted):,} calls, about {letters / 4000:,.1f} K tokens in, "
                f"about {dollars(cost)}   {folder}"
            )
            continue
        with open_ledger(llm, folder) as ledger:
            chat = open_chat(llm, ledger)
            missing = label_images(chat, wanted, folder / LABELS)
        use = chat.usage.get(("label", "t2i"))
        asked = (use.calls, use.replayed, dollars(known_dollars([use]))) if use else (0, 0, "$0.00")
        print(
            f"label   {len(wanted) - missing:,} of {len(wanted):,} image instructions; {asked[0]:,} answers are new, "
            f"{asked[1]:,} were there, {asked[2]}   -> {folder / LABELS}"
        )
