"""The report of a run: one page that stands alone, and beside it each picture as PNG and the numbers behind it as CSV.

In:  what a run left in its folder, or a Hub dataset of records.
Out: `report.html`, `NAME.png`, `NAME.csv`.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from repair_hf.analysis.costs import PAID_HEADS, paid_rows
from repair_hf.analysis.distributions import candidates, distributions
from repair_hf.analysis.errors import error_findings
from repair_hf.analysis.findings import SHOWN, Finding
from repair_hf.analysis.funnel import audit_shares, funnel, reasons
from repair_hf.analysis.material import Material
from repair_hf.analysis.pages import card, render
from repair_hf.analysis.people.findings import people_findings
from repair_hf.analysis.record_sample import sample_records
from repair_hf.analysis.repairs import rank_findings, round_finding
from repair_hf.llm.cost import Usage, paid_in
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.training.grids import SOURCES, Grids

SAMPLES = 12
SLOTS = {"image": "images, slot 2", "caption": "captions, slot 3"}


def findings(material: Material, pairs: Pairs | None = None) -> list[Finding]:
    """Everything that can be said of a run, in the order of its stages.

    Args:
        material: Of the run.
        pairs: What its records were made from; by default found by the run's own options.
    """
    rounds = round_finding(material.root)
    return [
        funnel(material),
        reasons(material),
        audit_shares(material),
        *people_findings(list(material.folders)),
        _costs(material.folders),
        *error_findings(material),
        candidates(material),
        *distributions(material),
        _grids(material, pairs),
        *rank_findings(material),
        *([] if rounds is None else [rounds]),
    ]


def write_report(material: Material, folder: Path, found: Sequence[Finding], *, seed: int = 0) -> Path:
    """Write the page and its files.

    Args:
        material: Of the run.
        folder: Where to.
        found: What to say.
        seed: Of the records that are shown.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sections = [_section(finding, finding.save(folder)) for finding in found]
    rows = sample_records(material.records, n=SAMPLES, seed=seed).rows if len(material.records) else []
    page = render(
        "report.html",
        name=material.name,
        kept=len(material.kept),
        dropped=len(material.dropped),
        sections=sections,
        cards=[card(row) for row in rows],
    )
    write_atomically(folder / "report.html", page)
    return folder / "report.html"


def _section(finding: Finding, picture: bytes | None) -> dict:
    table = finding.table
    rows = (
        [] if table is None else [[cell(value) for value in row] for row in table.head(SHOWN).itertuples(index=False)]
    )
    return {
        "finding": finding,
        "picture": None if picture is None else f"data:image/png;base64,{base64.b64encode(picture).decode()}",
        "heads": [] if table is None else list(table.columns),
        "rows": rows,
        "are_words": [all(text[:1].isalpha() or not text for text in column) for column in zip(*rows, strict=True)],
        "left": 0 if table is None else max(len(table) - SHOWN, 0),
    }


def cell(value: object) -> str:
    """A value of a table for a reader."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() and abs(value) > 1 else f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _costs(folders: Sequence[Path]) -> Finding:
    paid: dict[tuple[str, str], Usage] = {}
    for folder in folders:
        for key, use in paid_in(folder).items():
            before = vars(paid.get(key, Usage()))
            paid[key] = Usage(**{name: before[name] + value for name, value in vars(use).items()})
    title = "What it cost"
    if not paid:
        return Finding("costs", title, "No journal of answers lies beside these records.")
    told = "Tokens in thousands, as the provider counted them, by all runs in the folder; dollars by list prices at the time. Rejected failures are paid for too."
    heads = ["stage", "direction", *PAID_HEADS[2:]]
    return Finding("costs", title, told, pd.DataFrame(paid_rows(paid), columns=heads))


def _grids(material: Material, pairs: Pairs | None) -> Finding:
    """What training grids these records make."""
    title = "Grids"
    try:
        report = Grids(material.pairs() if pairs is None else pairs, material.records).report()
    except UserError as error:  # the pairs lie elsewhere, or the records are none of theirs
        return Finding("grids", title, f"Not counted: {error}")
    rows = [("anchors", "training captions", report["anchors"])]
    rows += [
        ("grids", told, report[f"grids_{n}"])
        for n, told in ((3, "full, 3 x 3"), (2, "one side is missing, 2 x 2"), (0, "none"))
    ]
    for item, slot in SLOTS.items():
        rows += [
            (slot, source.replace("_", " "), report[f"{item}_{source}"])
            for source in SOURCES
            if f"{item}_{source}" in report
        ]
    rows.append(("off-diagonal cells", "in all", report["cells"]))
    rows.append(("off-diagonal cells", "known to be true pairs, left out of the loss", report["cells_known"]))
    told = (
        "One draw per training caption. Slots 2 and 3 hold a match of each false positive: the edit of the mirrored record (reciprocal), "
        "the edit of another record of that query, or the dataset's own annotation."
    )
    return Finding("grids", title, told, pd.DataFrame(rows, columns=["", "what", "count"]))
