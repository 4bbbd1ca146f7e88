"""All findings of a run: whether repair helped, failures, edits, costs, people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from repair_hf.analysis.bars import bars
from repair_hf.analysis.checked import checked_finding, checked_in, describe_checked
from repair_hf.analysis.costs import PAID_HEADS, describe_paid, paid_for, paid_rows
from repair_hf.analysis.evaluations import find_evaluations
from repair_hf.analysis.people.agreement import people_findings
from repair_hf.analysis.repair_findings import blend_finding, repair_findings
from repair_hf.analysis.report import Answers, Finding
from repair_hf.analysis.run_data import RunData
from repair_hf.analysis.tables import SIDES, percent, round_rows
from repair_hf.llm.cost import Usage
from repair_hf.records.columns import DIRECTIONS, REASONS, REJECTED
from repair_hf.runtime.files import read_json
from repair_hf.synthesis.schemas import ERROR_TYPES

STAGES = {"audit": "passed the audit", "instruct": "instructed", "edit": "became records"}  # what passing is called
DENSITY = "multi-label density"
GROUPS = {f"{n}": n for n in range(1, 6)} | {"6–10": 10, "11–20": 20, "21–50": 50, "51–100": 100, "over 100": np.inf}


def run_findings(data: RunData, judgements: Sequence[str | Path] = ()) -> tuple[Answers, list[Finding]]:
    """Collect what opens the report of a run, and its sections."""
    evaluations = find_evaluations(data.root)
    helped, *measured = repair_findings(data.root, evaluations)
    paid, checked = paid_for(data.folders), checked_in(data.folders)
    sections = [
        *measured,
        funnel(data),
        reasons(data),
        error_finding(data),
        *checked_finding(checked),
        edit_similarity(data),
        *anchors(data),
        costs(paid),
        *_rounds(data.root),
        *people_findings(data, judgements),
    ]
    look = _what_to_look_at(data, describe_checked(checked))
    return Answers(helped, describe_paid(paid), look, blend_finding(evaluations)), sections


def _what_to_look_at(data: RunData, checked: str) -> list[tuple[str, str]]:
    """Name what went wrong most often and what only eyes can judge, each with the section that shows it."""
    look = [(checked, "checked")] if checked else []
    if len(data.dropped):
        counts, total = data.dropped["reason"].value_counts(), len(data.dropped) + len(data.kept)
        worst = f"{counts.iloc[0]:,} of {total:,} failures were dropped: {REASONS[counts.index[0]]}."
        look.append((worst, "dropped"))
    if len(data.kept):
        look.append(("The examples at the end: does each edit fit its query, and keep everything else?", "records"))
    else:
        look.append(("No failure became a record.", "funnel"))
    return look


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
    table = _by_direction(data.dropped["reason"], data.dropped["direction"])
    table = table.loc[table.sum(axis=1).sort_values(ascending=False).index].reset_index(names="reason")
    table["meaning"] = table["reason"].map(REASONS)
    note = "Each dropped failure has one reason; the config `dropped` holds both."
    plot = bars(table[["meaning", *DIRECTIONS]], "{:,.0f}".format)
    return Finding("dropped", "Why failures were dropped", note, table, plot=plot)


def error_finding(data: RunData) -> Finding:
    """Share of the records that have each error type, by direction.

    A record may have several types, so the shares add up to the density, which may exceed 100%.
    """
    typed = _typed(data)
    totals = typed.drop_duplicates("record_id")["direction"].value_counts()
    counts = _by_direction(typed["error_types"], typed["direction"]).reindex(list(ERROR_TYPES), fill_value=0)
    shares = counts / totals.reindex(list(DIRECTIONS)).fillna(np.inf)
    density = shares.sum()
    table = pd.concat([shares, density.to_frame(DENSITY).T]).reset_index(names="error")
    named = " and ".join(f"{count:,} {SIDES[way]} ({percent(density[way])} in all)" for way, count in totals.items())
    note = f"Shares of {named or 'no'} records. A record may have several types."
    return Finding("errors", "Error types", note, table, plot=bars(table[:-1], percent) if len(typed) else None)


def edit_similarity(data: RunData) -> Finding:
    """Cosine of edit and false positive, by error type and direction: how small the edits are."""
    typed = _typed(data).rename(columns={"error_types": "error"})
    everything = data.kept.assign(error="all")
    rows = pd.concat([typed, everything])[["error", "direction", "edit_similarity"]].dropna()
    long = rows.groupby(["error", "direction"])["edit_similarity"].agg(["count", "mean", "std", "median"])
    long = long.reindex([(error, way) for error in (*ERROR_TYPES, "all") for way in DIRECTIONS]).dropna(how="all")
    table = pd.DataFrame({"error": list(dict.fromkeys(long.index.get_level_values("error")))})
    for way in sorted(set(long.index.get_level_values("direction"))):
        own = long.xs(way, level="direction").reindex(table["error"])
        table[f"{way} edits"] = own["count"].fillna(0).astype(int).tolist()
        table[[f"{way} mean", f"{way} std", f"{way} median"]] = own[["mean", "std", "median"]].to_numpy()
    note = "Cosine of the edit and the false positive, by the retriever that failed; 1 is no change."
    return Finding("similarity", "How small the edits are", note, table, data=long.reset_index())


def anchors(data: RunData) -> list[Finding]:
    """Count the hard positives and hard negatives of each image (I2T) and caption (T2I) that the records name.

    A hard positive is an edit that was made for the item. A hard negative is what it was confused with: a false
    positive that it retrieved, or a query that it was a false positive of.
    """
    pairs = {way: data.kept[data.kept["direction"] == way][["q_id", "fp_id"]] for way in DIRECTIONS}
    positives, negatives = {}, {}
    for way, other in zip(DIRECTIONS, reversed(DIRECTIONS), strict=True):
        mirrored = pairs[other].rename(columns={"q_id": "fp_id", "fp_id": "q_id"})
        positives[way] = pairs[way].groupby("q_id").size()
        negatives[way] = pd.concat([pairs[way], mirrored]).drop_duplicates().groupby("q_id").size()
    return [
        _distribution("positives", "Hard positives of an item", positives),
        _distribution("negatives", "Hard negatives of an item, from both sides", negatives),
    ]


def _distribution(name: str, title: str, counts: Mapping[str, pd.Series]) -> Finding:
    """Count items by how many they have, for images (I2T) and captions (T2I); a logarithmic scale shows the tail."""
    bounds = [0, *GROUPS.values()]
    groups = {way: pd.cut(own, bounds, labels=list(GROUPS)).value_counts(sort=False) for way, own in counts.items()}
    table = pd.DataFrame(groups)
    table = table[table[::-1].cumsum()[::-1].sum(axis=1) > 0].reset_index(names=name)  # without an empty tail
    items = {"i2t": "images", "t2i": "captions"}
    described = [
        f"{items[way]} ({SIDES[way]}): median {own.median():g}, at most {own.max():,}"
        for way, own in counts.items()
        if len(own)
    ]
    note = f"{'; '.join(described)}. Bars have a logarithmic scale." if described else "There are no records."
    return Finding(name, title, note, table, plot=bars(table, "{:,.0f}".format, is_log=True))


def _typed(data: RunData) -> pd.DataFrame:
    """Return a row per record and error type."""
    has_types = data.kept["error_types"].map(lambda types: types is not None and len(types) > 0).astype(bool)
    return data.kept[has_types].explode("error_types")


def _by_direction(values: pd.Series, directions: pd.Series) -> pd.DataFrame:
    """Count values, a column per direction."""
    return pd.crosstab(values, directions).reindex(columns=list(DIRECTIONS), fill_value=0)


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
