"""People's answers as findings of a report."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from repair_hf.analysis.people.agreement import (
    QC_CELLS,
    QC_METRICS,
    annotator_agreement,
    edit_quality,
    failure_modes,
    qc_agreement,
)
from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import interval_cell
from repair_hf.records.answers import CRITERIA, ITEMS, PEOPLE, read_answers, read_items


def people_findings(folders: list[Path]) -> list[Finding]:
    """Collect the findings of people's answers; none if nobody has judged."""
    found = []
    if (asked := _asked(folders, "qc")) is not None:
        note = (
            "Counts are those of the sample. Precision, recall, accuracy and Cohen's kappa are those of the whole "
            "run: each stratum is weighted by its size. In brackets: 95% interval (Jeffreys' prior in each stratum)."
        )
        table = qc_agreement(*asked)
        found.append(Finding("agreement_qc", "The audit against people", note, _with_intervals(table), data=table))
        found += _annotators("qc", asked[1], ["verdict"])
    if (asked := _asked(folders, "edits")) is not None:
        table = edit_quality(*asked)
        note = f"{_bad_note(table)} Shares in %."
        found.append(Finding("agreement_edits", "Edits, as people see them", note, _wide(table), data=table))
        note = "Failure modes of the edits that miss a criterion."
        found.append(Finding("failure_modes", "How edits fail", note, failure_modes(*asked)))
        found += _annotators("edits", asked[1], list(CRITERIA))
    return found


def sentences_for_card(folder: Path) -> dict[str, str]:
    """Sentences for a dataset card on people's view of the audit (`qc`) and the edits (`edits`), if any."""
    sentences = {}
    if (asked := _asked([folder], "qc")) is not None:
        row = qc_agreement(*asked).iloc[0]
        share = f"{row['precision']:.1%} (95% interval {row['precision_low']:.1%} to {row['precision_high']:.1%})"
        sentences["qc"] = (
            f"People judged {row['items']:,} of its verdicts: {share} of the accepted failures are genuine."
        )
    if (asked := _asked([folder], "edits")) is not None:
        sentences["edits"] = _bad_note(edit_quality(*asked))
    return sentences


def _bad_note(quality: pd.DataFrame) -> str:
    good = quality.query("group == 'all' and criterion == 'valid_contrast'").iloc[0]
    return (
        f"People judged {good['items']:,} edits: an estimated {1 - good['share']:.1%} of all records "
        f"(95% interval {1 - good['high']:.1%} to {1 - good['low']:.1%}) are no valid hard contrast."
    )


def _with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """Format `qc_agreement`: a column per group, a row per number, metrics with their interval in brackets."""
    shown = table[["group", "items", *QC_CELLS]].copy()
    for name in QC_METRICS:
        cells = table[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
        shown[name if name == "kappa" else f"{name}, %"] = [interval_cell(name, *each) for each in cells]
    return shown.set_index("group").T.rename_axis(columns=None, index="").reset_index()


def _asked(folders: list[Path], task: str) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Items and answers of a task in all folders; the folder's place makes item ids unique."""
    items, answers = [], []
    for place, folder in enumerate(folders):
        here = folder / PEOPLE / task
        said = read_answers(here) if (here / ITEMS).is_file() else pd.DataFrame()
        if not said.empty:
            items.append(read_items(here).assign(item=lambda t, place=place: f"{place}:" + t["item"]))
            answers.append(said.assign(item=f"{place}:" + said["item"]))
    return (pd.concat(items, ignore_index=True), pd.concat(answers, ignore_index=True)) if items else None


def _annotators(task: str, answers: pd.DataFrame, questions: list[str]) -> list[Finding]:
    table = annotator_agreement(answers, questions)
    if table.empty:
        return []
    note = "On the items that both have answered. Kappa corrects for agreement by chance."
    return [Finding(f"annotators_{task}", "Agreement of the annotators", note, table)]


def _wide(table: pd.DataFrame) -> pd.DataFrame:
    cells = [interval_cell("share", *row) for row in table[["share", "low", "high"]].itertuples(index=False)]
    wide = table.assign(cell=cells).pivot(index="criterion", columns="group", values="cell")
    return wide.reindex(index=list(CRITERIA), columns=table["group"].unique()).rename_axis(columns=None).reset_index()
