"""`repair-hf agreement`: what people's answers say of the audit and of the edits.

In:  the folders of runs that people have judged (`repair-hf annotate`).
Out: tables: the audit's precision, recall, accuracy and Cohen's kappa; the criteria that edits meet; how edits fail; how far the
     annotators agree. With `--output` as CSV too.
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
    """Whose answers are counted."""

    _argument_group_name = "agreement"

    run: list[str] = need(
        "Folders of `repair-hf demo`, `run` or `synthesize`; several are told together and by dataset."
    )
    output: str | None = opt(None, "Folder for the tables as CSV and the pictures.")


OPTIONS = (AgreementOptions,)


def run(options: AgreementOptions) -> None:
    """Count, and print."""
    from rich.console import Console

    from repair_hf.analysis.people.findings import people_findings
    from repair_hf.analysis.report import cell
    from repair_hf.analysis.run_data import synthesis_folders
    from repair_hf.analysis.tables import terminal_table

    found = {run: synthesis_folders(Path(run)) for run in options.run}
    if empty := [run for run, folders in found.items() if not folders]:
        raise UserError(
            f"there are no records in {', '.join(empty)}; give the folder of `repair-hf demo`, `run` or `synthesize`."
        )
    folders = [folder for some in found.values() for folder in some]
    findings = people_findings(folders)
    if not findings:
        raise UserError(
            f"nobody has judged {', '.join(options.run)}; start with `repair-hf annotate qc {options.run[0]}`."
        )
    console = Console()
    for finding in findings:
        rows = (map(cell, row) for row in finding.table.itertuples(index=False))
        table = terminal_table(finding.table.columns, rows)
        table.title, table.caption = finding.title, finding.told
        table.title_justify = table.caption_justify = "left"
        console.print(table)
        if options.output is not None:
            Path(options.output).mkdir(parents=True, exist_ok=True)
            finding.save(Path(options.output))
    if options.output is not None:
        print(f"-> {options.output}")
