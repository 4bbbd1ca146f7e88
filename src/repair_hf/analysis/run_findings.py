"""All findings of a run: whether repair helped, failures, edits, costs, people.

What answers whether repair helped is what `repair-hf evaluate` compared below the run's folder: the difference between
a model that was trained with records and one that was trained without. The change from the base does not: plain
training raises R@1, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from repair_hf.analysis.costs import PAID_HEADS, describe_paid, paid_rows
from repair_hf.analysis.people.agreement import people_findings
from repair_hf.analysis.report import Answers, Finding
from repair_hf.analysis.run_data import RunData
from repair_hf.analysis.tables import difference_cell, label, percent, round_rows
from repair_hf.evaluation.comparison import short_names
from repair_hf.evaluation.contrast import SCORES
from repair_hf.evaluation.ranks import FILE as RANKS
from repair_hf.llm.cost import Usage, paid_in
from repair_hf.records.columns import DIRECTIONS, REASONS, REJECTED
from repair_hf.runtime.files import read_json
from repair_hf.synthesis.instruct import ERROR_TYPES

STAGES = {"audit": "passed the audit", "instruct": "instructed", "edit": "became records"}  # what passing is called
DENSITY = "multi-label density"


def run_findings(data: RunData) -> tuple[Answers, list[Finding]]:
    """Collect what opens the report of a run, and its sections."""
    helped, *ranks = repair_findings(data.root)
    paid = paid_in(*data.folders)
    sections = [
        funnel(data),
        reasons(data),
        error_finding(data),
        costs(paid),
        *ranks,
        *_rounds(data.root),
        *people_findings(list(data.folders)),
    ]
    return Answers(helped, describe_paid(paid), _what_to_look_at(data, helped)), sections


def _what_to_look_at(data: RunData, helped: Finding) -> list[tuple[str, str]]:
    """Name what went wrong most often and what only eyes can judge, each with the section that shows it."""
    found = []
    if len(data.dropped):
        counts, total = data.dropped["reason"].value_counts(), len(data.dropped) + len(data.kept)
        found.append(
            (f"{counts.iloc[0]:,} of {total:,} failures were dropped: {REASONS[counts.index[0]]}.", "dropped")
        )
    lost = [] if helped.data is None else helped.data[helped.data["high"] < 0]["comparison"].unique()
    found += [(f"{name}: worse with records.", "ranks") for name in lost]
    if len(data.kept):
        return [
            *found,
            ("The examples at the end: does each edit fit its query, and keep everything else?", "records"),
        ]
    return [*found, ("No failure became a record.", "funnel")]


def funnel(data: RunData) -> Finding:
    """How many failures reached each stage."""
    # the audit says of each failure why its false positive is wrong
    is_audited = any(table["fp_reason"].notna().any() for table in (data.kept, data.dropped))
    stages = {name: passed for name, passed in STAGES.items() if is_audited or name != "audit"}
    lost = lost_at(data.dropped, is_audited=is_audited).groupby(data.dropped["direction"]).value_counts()
    table = pd.DataFrame({"stage": ["mined", *stages.values()]})
    for way in DIRECTIONS:
        losses = [int(lost.get((way, stage), 0)) for stage in stages]
        mined = int((data.kept["direction"] == way).sum()) + sum(losses)
        table[way] = mined - np.cumsum([0, *losses])
        table[f"{way}, of mined"] = [percent(left, mined) for left in table[way]]
    note = "A failure is lost at the first stage that rejects it or gives no usable result; see the reasons below."
    return Finding("funnel", "From failures to records", note, table)


def lost_at(dropped: pd.DataFrame, *, is_audited: bool = True) -> pd.Series:
    """Find the stage (`audit`, `instruct`, `edit`) that lost each dropped failure: the first without a result."""
    is_audit = is_audited & (dropped["reason"].isin(REJECTED) | dropped["fp_reason"].isna())
    stages = np.select([is_audit, dropped["edit_instruction"].isna()], ["audit", "instruct"], "edit")
    return pd.Series(stages, index=dropped.index, dtype=object)


def reasons(data: RunData) -> Finding:
    """Why failures were dropped."""
    table = pd.crosstab(data.dropped["reason"], data.dropped["direction"]).reindex(
        columns=list(DIRECTIONS), fill_value=0
    )
    table = table.loc[table.sum(axis=1).sort_values(ascending=False).index].reset_index()
    table["meaning"] = table["reason"].map(REASONS)
    note = "Each dropped failure has one reason; the config `dropped` holds both."
    return Finding("dropped", "Why failures were dropped", note, table)


def error_finding(data: RunData) -> Finding:
    """Share of the records of captions that have each error type: their instruction names it.

    A record may have several types, so the shares add up to the density, which may exceed 100%.
    """
    types = data.kept[data.kept["direction"] == "i2t"]["error_types"]
    found = types[types.map(lambda names: names is not None and len(names) > 0)]
    counts = found.explode().value_counts().reindex(ERROR_TYPES, fill_value=0).sort_values(ascending=False)
    note = f"Shares of the {len(found):,} edited captions. A record may have several; image instructions name none."
    if found.empty:
        return Finding("errors", "Error types", note)
    shares = pd.concat([counts, pd.Series({DENSITY: counts.sum()})]) / len(found)
    table = pd.DataFrame({"error": shares.index, "i2t": shares.to_numpy()})
    return Finding("errors", "Error types", note, table.assign(i2t=table["i2t"].map(percent)), data=table)


def costs(paid: Mapping[tuple[str, str], Usage]) -> Finding:
    title = "What it cost"
    if not paid:
        return Finding("costs", title, "There is no ledger of payments beside these records.")
    text = (
        "Thousands of tokens, as counted by the provider, over all runs in the folder. Dollars are list prices at the "
        "time. Rejected failures are paid for too."
    )
    heads = ["stage", "direction", *PAID_HEADS[2:]]
    return Finding("costs", title, text, pd.DataFrame(paid_rows(paid), columns=heads))


def _rounds(root: Path | None) -> list[Finding]:
    """R@1 after each round of `repair-hf run`; none if there were no rounds."""
    if root is None or not (root / "rounds.json").is_file():
        return []
    history = read_json(root / "rounds.json", needs=("rounds", "split", "stopped"))
    heads, rows = round_rows(history["rounds"])
    note = f"Measured on the split `{history['split']}`; stopped {history['stopped']}."
    return [Finding("rounds", "Round by round", note, pd.DataFrame(rows, columns=heads))]


EVALUATE = "`repair-hf evaluate BASE PLAIN REPAIRED --output …`"


def repair_findings(root: Path | None) -> list[Finding]:
    """Return what opens a report, and how contrast sets and the ranks of queries changed."""
    measured, compared = ({}, []) if root is None else find_evaluations(root)
    names = {Path(folder): name for name, folder in short_names(list(map(str, measured))).items()}
    repairs = {f"{names[folder / one['model']]} − {names[folder / one['reference']]}": one for folder, one in compared}
    levels = {names[folder]: found for folder, found in measured.items()}
    tables, data = [], []
    for is_shown in (lambda metric: metric.endswith("_R@1"), SCORES.__contains__):
        table = [
            {"model": name} | {label(key): f"{100 * one[key]:.1f}" for key in one["intervals"] if is_shown(key)}
            for name, one in levels.items()
        ]
        for name, one in repairs.items():
            gains = {metric: gain for metric, gain in one["differences"].items() if is_shown(metric)}
            table.append(
                {"model": name} | {label(metric): difference_cell(metric, each) for metric, each in gains.items()}
            )
            data += [{"comparison": name, "metric": metric} | each for metric, each in gains.items()]
        tables.append(pd.DataFrame([row for row in table if len(row) > 1]))
    recall, contrast = tables
    helped = Finding("repair", "Did repair help?", _answer(bool(levels), data), recall if levels else None)
    changed = [
        {"comparison": name, "direction": way} | counts
        for name, one in repairs.items()
        for way, counts in one["queries"].items()
    ]
    found = [replace(helped, data=pd.DataFrame(data)) if data else helped]
    if len(contrast):
        note = "Share of questions about one changed detail that are answered rightly, in %. Guessing gives 50."
        found.append(Finding("contrast", "Contrast set", note, contrast))
    if changed:
        note = "repaired: first only with records; broken: first only without; improved, worsened: first with neither."
        found.append(Finding("ranks", "Ranks with and without records", note, pd.DataFrame(changed)))
    return found


def find_evaluations(root: Path) -> tuple[dict[Path, dict[str, Any]], list[tuple[Path, dict[str, Any]]]]:
    """Find what was evaluated below a folder.

    Returns:
        The metrics of each model by its folder, in the order of `evaluate`; and the comparisons of models trained with
        records and without, each with the folder of its evaluation.
    """
    measured: dict[Path, dict[str, Any]] = {}
    repairs: list[tuple[Path, dict[str, Any]]] = []
    for folder in (path.parent for path in sorted(root.rglob("differences.json"))):
        measured |= {folder / name: each for name, each in read_json(folder / "metrics.json").items()}
        compared = read_json(folder / "differences.json").get("repair", ())
        repairs += [(folder, one) for one in compared if one["reference"] is not None]
    for folder in (path.parent for path in sorted(root.rglob(RANKS))):
        if folder not in measured and (folder / "metrics.json").is_file():
            measured[folder] = read_json(folder / "metrics.json", needs=("intervals",))
    return measured, repairs


def _answer(is_measured: bool, differences: list[dict[str, Any]]) -> str:
    if not is_measured:
        return f"Not measured. Run {EVALUATE} with a folder below this one."
    if not differences:
        return (
            "Not known: plain training raises R@1 too, and no model without records was measured beside the repaired "
            f"one. Train one for as many steps without `--records`, and run {EVALUATE} with a folder below this one."
        )
    rose, fell = sum(row["low"] > 0 for row in differences), sum(row["high"] < 0 for row in differences)
    verdict = "Partly" if rose and fell else "Yes" if rose else "No" if fell else "Not shown"
    return (
        f"{verdict}: better in {rose} and worse in {fell} of {len(differences)} comparisons of training with records "
        "and without, by R@1 and contrast sets. In %; *: the 95% interval excludes 0."
    )
