"""`repair-hf agreement`: summarize people's judgements of a run (`repair-hf annotate`).

Prints the audit's precision, recall, accuracy and Cohen's kappa, the criteria that edits meet, how edits fail, and how
well the annotators agree. `--output` writes the tables as CSV too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from repair_hf.runtime.options import UserError, need, opt

EPILOG = """examples:
  repair-hf agreement runs/demo
  repair-hf agreement runs/flickr30k runs/coco30k --output agreement"""


@dataclass
class AgreementOptions:
    run: list[str] = need(
        "Folders of `repair-hf demo`, `run` or `synthesize`; several are shown together and by dataset."
    )
    output: str | None = opt(None, "Folder for the tables, as CSV, and their charts.")


OPTIONS = (AgreementOptions,)


def run(options: AgreementOptions) -> None:
    from rich.console import Console

    from repair_hf.analysis.people.findings import people_findings
    from repair_hf.analysis.run_data import synthesis_folders
    from repair_hf.analysis.tables import cell, terminal_table

    by_run = {run: synthesis_folders(Path(run)) for run in options.run}
    if empty := [run for run, folders in by_run.items() if not folders]:
        raise UserError(
            f"there are no records in {', '.join(empty)}; give the folder of `repair-hf demo`, `run` or `synthesize`."
        )
    findings = people_findings([folder for folders in by_run.values() for folder in folders])
    if not findings:
        raise UserError(
            f"No judgements in {', '.join(options.run)}; start with `repair-hf annotate qc {options.run[0]}`."
        )
    console = Console()
    for finding in findings:
        if finding.table is None:
            continue
        rows = ([cell(value) for value in row] for row in finding.table.itertuples(index=False))
        table = terminal_table(finding.table.columns, rows)
        table.title, table.caption = finding.title, finding.note
        table.title_justify = table.caption_justify = "left"
        console.print(table)
        if options.output is not None:
            Path(options.output).mkdir(parents=True, exist_ok=True)
            finding.save(Path(options.output))
    if options.output is not None:
        print(f"-> {options.output}")
