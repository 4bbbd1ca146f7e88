"""`repair-hf analyze`: write a report on a run, on mined failures, or on a Hub dataset of records.

The report is one self-contained page, `report.html`, with its tables as CSV beside it.

It prints whether repair helped. With `--judgements` of people (`repair-hf annotate`) it also prints the audit's
precision, recall, accuracy and Cohen's kappa, the criteria that edits meet, and how edits fail.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from repair_hf.analysis.options import SourceOptions
from repair_hf.cli.subcommands import print_table
from repair_hf.runtime.options import Bounded, need, opt

EPILOG = """examples:
  repair-hf analyze runs/failures
  repair-hf analyze runs/demo
  repair-hf analyze me/photos-repair --pairs data/mine --output report"""


@dataclass
class AnalyzeOptions(Bounded):
    run: str = need("Folder of `repair-hf mine`, `synthesize`, `run` or `demo`, or records on the Hub.")
    output: str | None = opt(None, "Folder of the report. Default: `report` in the run's folder.", main=True)
    judgements: list[str] = opt([], "Files of judgements that pages of `repair-hf annotate` saved.")
    calls: bool = opt(False, "Print all paid calls of the run's ledger as JSON Lines, then stop.", main=True)


OPTIONS = (AnalyzeOptions, SourceOptions)


def run(options: AnalyzeOptions, source: SourceOptions) -> None:
    """Write the report, or print the ledger."""
    from repair_hf.analysis.analyze import analyze, report_folder
    from repair_hf.analysis.costs import calls_of
    from repair_hf.analysis.people.agreement import FINDINGS
    from repair_hf.analysis.report import PAGE
    from repair_hf.analysis.run_data import synthesis_folders

    if options.calls:
        for folder in synthesis_folders(Path(options.run)) or [Path(options.run)]:
            for call in calls_of(folder):
                print(json.dumps(call))
        return
    findings = analyze(options.run, options.output, pairs=source.pairs, judgements=options.judgements)
    for finding in (findings[0], *(finding for finding in findings if finding.name in FINDINGS)):
        print(f"\n{finding.title}")
        if finding.table is not None:
            print_table(*finding.rows)
        print(finding.note)
    print(f"analyze   {options.run}   -> {report_folder(options.run, options.output) / PAGE}")
