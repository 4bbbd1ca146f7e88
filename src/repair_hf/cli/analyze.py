"""`repair-hf analyze`: the report of a run.

In:  the folder of a run (of `repair-hf demo`, `run` or `synthesize`), or a Hub dataset of records.
Out: `report.html`, one page that stands alone; beside it each picture as PNG and the numbers behind it as CSV.

With `--llm` the instructions for images, which name no kind of error, are labelled by a language model first. Its answers go into the
journal of the run's folder: they are paid for once, and count among the run's costs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repair_hf.runtime.options import PairsOptions, UserError, need, opt
from repair_hf.runtime.subcommands import suggest
from repair_hf.synthesis.models import LLMOptions

EPILOG = """examples:
  repair-hf analyze runs/demo
  repair-hf analyze runs/demo --llm world/oracle --output report
  repair-hf analyze me/photos-repair --pairs annotations.json --image-folder train2014 --output report"""

ANSWER_TOKENS = 20  # of a label, for the estimate


@dataclass
class AnalyzeOptions:
    """What is looked at, and where the report goes."""

    _argument_group_name = "analyze"

    run: str = need("Folder of `repair-hf demo`, `run` or `synthesize`, or a Hub dataset of records.")
    output: str | None = opt(None, "Folder of the report; `report` in the run's folder by default.")
    watch: int | None = opt(None, "Write the report anew every so many seconds, until interrupted.")
    dry_run: bool = opt(False, "Say what the labelling would ask and cost, then stop.")
    seed: int = opt(0, "Another seed shows other records.")

    def __post_init__(self) -> None:
        if self.watch is not None and self.watch < 1:
            raise UserError(f"`watch` is a number of seconds from 1, got {self.watch}.")


@dataclass
class LabelOptions(LLMOptions):
    """Who labels the instructions for images; nobody by default."""

    llm: str | None = opt(
        None, "Labels the instructions for images by kind of error: an id as for `repair-hf synthesize`."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch:
            raise UserError("`batch` is for `repair-hf synthesize`; labelling asks at once. Leave it out.")


@dataclass
class SourceOptions(PairsOptions):
    """What the records were made from; by default what the run itself tells."""

    pairs: str | None = opt(None, "Folder, caption JSON or Hub dataset id of the pairs.")


OPTIONS = (AnalyzeOptions, LabelOptions, SourceOptions)


def run(options: AnalyzeOptions, llm: LabelOptions, source: SourceOptions) -> None:
    """Label if asked to, then write the report."""
    from repair_hf.analysis.report import write_report
    from repair_hf.analysis.run_data import gather
    from repair_hf.analysis.run_findings import run_findings
    from repair_hf.pairs.dataset import load_wanted

    if options.dry_run and llm.llm is None:
        raise UserError(
            "`dry_run` says what labelling would cost; give --llm, or leave it out: a report costs nothing."
        )
    if llm.llm is not None:
        _label(gather(options.run), llm, options.dry_run)
    if options.dry_run:
        return
    output = Path(options.output) if options.output else Path(options.run) / "report"
    if options.output is None and not Path(options.run).is_dir():
        raise UserError(
            f"{options.run} is no folder here; give that of a run. Of records on the Hub, say by --output where the report goes."
        )
    pairs = None if source.pairs is None else load_wanted(source)
    while True:
        start, material = time.perf_counter(), gather(options.run)
        page = write_report(material, output, run_findings(material, pairs), seed=options.seed)
        size = page.stat().st_size / 2**20
        print(
            f"analyze   {len(material.kept):,} records, {time.perf_counter() - start:.0f} s, {size:.1f} MB   -> {page}"
        )
        if options.watch is None:
            break
        time.sleep(options.watch)
    if material.folders:
        suggest("annotate", "edits", options.run if len(material.folders) == 1 else str(material.folders[-1]))


def _label(material: Any, llm: LabelOptions, is_rehearsal: bool) -> None:
    """Ask for the kinds of error of each round's image instructions."""
    from repair_hf.analysis.costs import dollars
    from repair_hf.analysis.run_data import LABELS
    from repair_hf.llm.cost import price_per_token
    from repair_hf.llm.journal import open_journal
    from repair_hf.records.dataset import load_kept
    from repair_hf.synthesis.labelling import ask_about, label_images
    from repair_hf.synthesis.models import find_llm, open_chat
    from repair_hf.synthesis.rounds import paid_by

    if not material.folders:
        raise UserError(f"{material.name} is no folder of a synthesis; labels and their journal have no place there.")
    for folder in material.folders:
        wanted = load_kept(folder).select_columns(["direction", "record_id", "q_text", "edit_instruction"]).to_list()
        wanted = [row for row in wanted if row["direction"] == "t2i"]
        if is_rehearsal:
            place, name = find_llm(llm)
            letters = sum(len(str(message["content"])) for row in wanted for message in ask_about(row))
            prices = price_per_token(name, batch=llm.batch) if place == "litellm" else (0.0, 0.0)
            cost = None if prices is None else letters / 4 * prices[0] + len(wanted) * ANSWER_TOKENS * prices[1]
            print(
                f"label   {len(wanted):,} calls, about {letters / 4000:,.1f} K tokens in, about {dollars(cost)}   {folder}"
            )
            continue
        dollars_paid, answers_paid = paid_by(material.folders)
        with open_journal(folder) as journal:
            chat = open_chat(llm, journal)
            # ceilings hold for the run: what this journal lacks are images, and what other rounds have paid
            chat.budget.count(dollars_paid - journal.dollars, answers_paid - journal.calls)
            missing = label_images(chat, wanted, folder / LABELS)
        use = chat.usage.get(("label", "t2i"))
        asked = (use.calls, use.replayed, dollars(None if use.unpriced else use.dollars)) if use else (0, 0, "$0.00")
        print(
            f"label   {len(wanted) - missing:,} of {len(wanted):,} image instructions; {asked[0]:,} answers are new, {asked[1]:,} were "
            f"there, {asked[2]}   -> {folder / LABELS}"
        )
