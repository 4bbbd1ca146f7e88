"""Agreement of people with the audit and with each other, and their view of the edits.

Items and answers are tables of `repair_hf.records.answers`. Items are drawn from strata of different sizes: as many
rejected as accepted failures, though most were accepted. Counts are those of the sample, as in the paper. Shares and
metrics are those of the whole run: each stratum is weighted by its `population`. Each share within a stratum has
Jeffreys' prior, Beta(1/2, 1/2); an interval holds 95% of the posterior.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import interval_cell
from repair_hf.records.answers import CRITERIA, ITEMS, MODES, PEOPLE, majority, read_answers, read_items

STRATA = ["folder", "direction"]
DRAWS = 1000
TAILS = (0.025, 0.975)
QC_METRICS = ("precision", "recall", "accuracy", "kappa")
NO_MODE = "none"
QC_CELLS = ("accepted, genuine", "accepted, not", "rejected, genuine", "rejected, not")


def qc_metrics(cells: npt.ArrayLike) -> dict[str, np.ndarray]:
    """Compute how well the audit finds genuine failures, from the counts (or weights) of 2x2 tables.

    Shape:
        cells: (..., 4), as `QC_CELLS`. Returns arrays of (...).

    Returns:
        `precision` (genuine among the accepted), `recall` (accepted among the genuine), `accuracy`, Cohen's `kappa`.

    Example:
        >>> {name: round(float(value), 3) for name, value in qc_metrics([240, 26, 46, 88]).items()}
        {'precision': 0.902, 'recall': 0.839, 'accuracy': 0.82, 'kappa': 0.58}
    """
    both, accepted_only, genuine_only, neither = np.moveaxis(np.asarray(cells, float), -1, 0)
    total = both + accepted_only + genuine_only + neither
    accepted, genuine, accuracy = both + accepted_only, both + genuine_only, (both + neither) / total
    chance = (accepted * genuine + (total - accepted) * (total - genuine)) / total**2
    with np.errstate(invalid="ignore", divide="ignore"):
        kappa = (accuracy - chance) / (1 - chance)
        return {"precision": both / accepted, "recall": both / genuine, "accuracy": accuracy, "kappa": kappa}


def qc_agreement(items: pd.DataFrame, answers: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Compare the audit with people: overall and by direction.

    Returns:
        `group`; `items` and the four counts of the sample; each metric with `_low` and `_high`.
    """
    is_genuine = majority(answers, "verdict") == "genuine"
    joined = items.merge(is_genuine.rename("genuine"), left_on="item", right_index=True)
    return pd.DataFrame([_qc_row(name, part, seed) for name, part in _groups(joined)])


def _qc_row(name: str, items: pd.DataFrame, seed: int) -> dict[str, Any]:
    rng, cells, sample = np.random.default_rng(seed), np.zeros(4), np.zeros(4, int)
    drawn = np.zeros((DRAWS, 4))
    for (accepted, *_), stratum in items.groupby(["accepted", *STRATA]):
        yes, n, weight = int(stratum["genuine"].sum()), len(stratum), float(stratum["population"].iloc[0])
        place = [0, 1] if accepted else [2, 3]
        share = stats.beta.rvs(yes + 0.5, n - yes + 0.5, size=DRAWS, random_state=rng)
        sample[place] += [yes, n - yes]
        cells[place] += weight * np.array([yes / n, 1 - yes / n])
        drawn[:, place] += weight * np.stack([share, 1 - share], 1)
    values, draws = qc_metrics(cells), qc_metrics(drawn)
    row: dict[str, Any] = {"group": name, "items": len(items)} | dict(zip(QC_CELLS, sample.tolist(), strict=True))
    for metric in QC_METRICS:
        value = float(values[metric])
        bounds = _bounds(draws[metric], value)
        row |= {metric: value} | {f"{metric}_{name}": bound for name, bound in bounds.items()}
    return row


def edit_quality(items: pd.DataFrame, answers: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Count the edits that meet each criterion: overall and by direction.

    Returns:
        `group`, `criterion`, `items`, `met` (of the sample), `share` (of all records) with `low` and `high`.
    """
    rows = []
    for criterion in CRITERIA:
        met = majority(answers, criterion).astype(bool).rename("met")
        joined = items.merge(met, left_on="item", right_index=True)
        rows += [
            {"group": name, "criterion": criterion, "items": len(part), "met": int(part["met"].sum())}
            | share_of(part, "met", seed=seed)
            for name, part in _groups(joined)
        ]
    return pd.DataFrame(rows)


def share_of(items: pd.DataFrame, column: str, *, seed: int = 0) -> dict[str, float]:
    """Estimate the share of all records with `column` from a stratified sample: `share`, `low`, `high`."""
    rng, share, drawn, total = np.random.default_rng(seed), 0.0, np.zeros(DRAWS), 0.0
    for _, stratum in items.groupby(STRATA):
        yes, n, weight = int(stratum[column].sum()), len(stratum), float(stratum["population"].iloc[0])
        share, total = share + weight * yes / n, total + weight
        drawn += weight * stats.beta.rvs(yes + 0.5, n - yes + 0.5, size=DRAWS, random_state=rng)
    return {"share": share / total} | _bounds(drawn / total, share / total)


def failure_modes(items: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    """Count the failure modes of the sampled edits: a row per mode, a column per direction.

    No mode is an answer, too: an edit fails if most annotators name the same mode.
    """
    modes = majority(answers.assign(mode=answers["mode"].fillna(NO_MODE)), "mode")
    modes = modes[modes != NO_MODE]
    joined = items.merge(modes.rename("mode"), left_on="item", right_index=True)
    table = pd.crosstab(joined["mode"], joined["direction"]).reindex(list(MODES), fill_value=0)
    return table.assign(total=table.sum(axis=1)).reset_index()


def annotator_agreement(answers: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Compare each two annotators on the items that both have answered.

    Returns:
        `question`, `annotators`, `items`, `agreement` (share of equal answers), Cohen's `kappa` (NaN if both gave
        one answer only).
    """
    rows = []
    for column in columns:
        wide = answers.pivot(index="item", columns="annotator", values=column)
        for one, other in combinations(wide.columns, 2):
            both = wide[[one, other]].dropna()
            if len(both):
                left, right = both[one].astype(str), both[other].astype(str)
                equal = float((left == right).mean())
                chance = (left.value_counts(normalize=True) * right.value_counts(normalize=True)).sum()
                kappa = np.nan if chance == 1 else (equal - chance) / (1 - chance)
                rows.append((column, f"{one}, {other}", len(both), equal, kappa))
    return pd.DataFrame(rows, columns=["question", "annotators", "items", "agreement", "kappa"])


def _bounds(drawn: np.ndarray, value: float) -> dict[str, float]:
    """`low` and `high`. If all or none were right, the value may lie outside these quantiles; it is the bound then."""
    low, high = np.nanquantile(drawn, TAILS)
    return {"low": float(min(low, value)), "high": float(max(high, value))}


def _groups(items: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [("all", items), *items.groupby("direction")]


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
