"""All findings of a run: whether repair helped, failures, edits, costs, people."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from repair_hf.analysis.comparisons import repair_findings
from repair_hf.analysis.costs import PAID_HEADS, describe_paid, paid_rows
from repair_hf.analysis.people.findings import people_findings
from repair_hf.analysis.report import Answers, Finding
from repair_hf.analysis.run_data import RunData
from repair_hf.analysis.tables import percent, round_rows
from repair_hf.records.columns import DIRECTIONS, REASONS, REJECTED
from repair_hf.runtime.files import read_json
from repair_hf.synthesis.instruct import ERROR_TYPES

STAGES = {"audit": "passed the audit", "instruct": "instructed", "edit": "became records"}  # what passing is called
DENSITY = "multi-label density"


def run_findings(data: RunData) -> tuple[Answers, list[Finding]]:
    """Collect what opens the report of a run, and its sections."""
    helped, *ranks = repair_findings(data.root)
    sections = [
        funnel(data),
        reasons(data),
        error_finding(data),
        costs(data),
        *ranks,
        *_rounds(data.root),
        *people_findings(list(data.folders)),
    ]
    return Answers(helped, describe_paid(data.paid), _what_to_look_at(data, helped)), sections


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
    is_audited = was_audited(data)
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


def was_audited(data: RunData) -> bool:
    """Return whether failures were audited: the audit says of each why its false positive is wrong."""
    return bool(data.kept["fp_reason"].notna().any() or data.dropped["fp_reason"].notna().any())


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
    """Frequency of each error type: from an instruction for a caption, or by the label of one for an image."""
    frame, labels = data.kept[["direction", "record_id", "error_types"]].copy(), data.labels()
    is_image = frame["direction"] == "t2i"
    frame["error_types"] = frame["error_types"].map(lambda names: [] if names is None else list(names))
    frame.loc[is_image, "error_types"] = frame.loc[is_image, "record_id"].map(lambda name: labels.get(name, []))
    records = frame[frame["error_types"].map(len) > 0]
    known, total = (each["direction"].value_counts() for each in (records, data.kept))
    counted = ", ".join(f"{known.get(way, 0):,} of {total.get(way, 0):,} {way}" for way in DIRECTIONS)
    note = (
        f"Shares of the {counted} records whose error types are known; a record may have several. Caption "
        "instructions name them; image instructions must first be labelled by an LLM (--llm)."
    )
    if records.empty:
        return Finding("errors", "Error types", note)
    shares = error_shares(records)
    shown = shares.assign(**{way: shares[way].map(percent) for way in DIRECTIONS})
    return Finding("errors", "Error types", note, shown, data=shares)


def error_shares(records: pd.DataFrame) -> pd.DataFrame:
    """Share of a direction's records that has each error type.

    A record may have several types, so the shares add up to the density, which may exceed 100%.

    Returns:
        `error`, one row per type by frequency and one for the density; a column per direction, NaN without records.
    """
    shares = {}
    for direction in DIRECTIONS:
        of_way = records[records["direction"] == direction]["error_types"]
        counts = of_way.explode().value_counts()
        shares[direction] = [counts.get(name, 0) / len(of_way) if len(of_way) else np.nan for name in ERROR_TYPES]
    table = pd.DataFrame({"error": ERROR_TYPES, **shares})
    table = table.sort_values(list(DIRECTIONS[::-1]), ascending=False, ignore_index=True)
    density = {way: table[way].sum(min_count=1) for way in DIRECTIONS}
    return pd.concat([table, pd.DataFrame([{"error": DENSITY, **density}])], ignore_index=True)


def costs(data: RunData) -> Finding:
    paid, title = data.paid, "What it cost"
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
