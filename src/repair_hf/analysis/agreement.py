"""Agreement: what people's answers say of the audit's verdicts and of the edits, and how far the annotators agree.

In:  answers and items of `repair-hf annotate`, as `repair_hf.records.answers` reads them.
Out: tables with 95% intervals, and findings for a report.

Items are drawn by strata of different sizes (as many rejected as accepted failures, though most were accepted). Counts of the sample are
told as they are, as the paper does; `precision`, `recall`, ... are those of the whole run: each stratum weighs as much as what it was
drawn from. A share within a stratum is given Jeffreys' prior, Beta(1/2, 1/2); an interval holds 95% of what the strata's posteriors imply.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.metrics import accuracy_score, cohen_kappa_score, precision_score, recall_score

from repair_hf.records.answers import CRITERIA, MODES, majority

STRATA = ["folder", "dataset", "direction"]  # items of one stand for as many as its `population`
DRAWS = 1000
TAILS = (0.025, 0.975)
QC_METRICS = ("precision", "recall", "accuracy", "kappa")
# The four cells of a table of audit against people: accepted and genuine, accepted only, genuine only, neither.
_ACCEPTED, _GENUINE = [1, 1, 0, 0], [1, 0, 1, 0]


def qc_metrics(cells: Sequence[float]) -> dict[str, float]:
    """How well the audit finds genuine failures, from the counts (or weights) of a 2x2 table.

    Args:
        cells: Accepted and genuine; accepted, not genuine; rejected, genuine; rejected, not genuine.

    Returns:
        `precision` (genuine among the accepted), `recall` (accepted among the genuine), `accuracy` and Cohen's `kappa`.

    Example:
        >>> {name: round(value, 3) for name, value in qc_metrics([240, 26, 46, 88]).items()}
        {'precision': 0.902, 'recall': 0.839, 'accuracy': 0.82, 'kappa': 0.58}
    """
    given = {"y_true": _GENUINE, "y_pred": _ACCEPTED, "sample_weight": np.asarray(cells, float)}
    share = {**given, "zero_division": np.nan}
    return {
        "precision": float(precision_score(**share)),
        "recall": float(recall_score(**share)),
        "accuracy": float(accuracy_score(**given)),
        "kappa": float(cohen_kappa_score(_GENUINE, _ACCEPTED, sample_weight=given["sample_weight"])),
    }


def many_qc_metrics(cells: np.ndarray) -> dict[str, np.ndarray]:
    """`qc_metrics` of many tables at once, (n, 4) to (n,) each: scikit-learn takes one at a time, and an interval needs a thousand."""
    both, accepted_only, genuine_only, neither = cells.T
    total = cells.sum(axis=1)
    accepted, genuine, accuracy = both + accepted_only, both + genuine_only, (both + neither) / total
    chance = (accepted * genuine + (total - accepted) * (total - genuine)) / total**2
    with np.errstate(invalid="ignore", divide="ignore"):
        kappa = (accuracy - chance) / (1 - chance)
        return {"precision": both / accepted, "recall": both / genuine, "accuracy": accuracy, "kappa": kappa}


def qc_agreement(items: pd.DataFrame, answers: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """The audit against people: overall, by direction, and by dataset where there are several.

    Args:
        items: `item`, `folder`, `dataset`, `direction`, `accepted`, `population`.
        answers: `annotator`, `item`, `verdict`.
        seed: Of the draws behind the intervals.

    Returns:
        `group`; `items` and the four counts of the sample; each metric with `_low` and `_high`.
    """
    told = majority(answers, "verdict") == "genuine"
    joined = items.merge(told.rename("genuine"), left_on="item", right_index=True)
    return pd.DataFrame([_qc_row(name, part, seed) for name, part in _groups(joined)])


def _qc_row(name: str, items: pd.DataFrame, seed: int) -> dict:
    rng, cells, sample = np.random.default_rng(seed), np.zeros(4), np.zeros(4, int)
    drawn = np.zeros((DRAWS, 4))
    for (accepted, *_), stratum in items.groupby(["accepted", *STRATA]):
        yes, n, weight = int(stratum["genuine"].sum()), len(stratum), float(stratum["population"].iloc[0])
        place = [0, 1] if accepted else [2, 3]
        share = stats.beta.rvs(yes + 0.5, n - yes + 0.5, size=DRAWS, random_state=rng)
        sample[place] += [yes, n - yes]
        cells[place] += weight * np.array([yes / n, 1 - yes / n])
        drawn[:, place] += weight * np.stack([share, 1 - share], 1)
    counts = dict(
        zip(("accepted, genuine", "accepted, not", "rejected, genuine", "rejected, not"), sample.tolist(), strict=True)
    )
    values, draws = qc_metrics(cells), many_qc_metrics(drawn)
    row = {"group": name, "items": len(items)} | counts
    for metric in QC_METRICS:
        bounds = _bounds(draws[metric], values[metric])
        row |= {metric: values[metric]} | {f"{metric}_{name}": bound for name, bound in bounds.items()}
    return row


def edit_quality(items: pd.DataFrame, answers: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """How many edits meet each criterion: overall, by direction, and by dataset where there are several.

    Args:
        items: `item`, `folder`, `dataset`, `direction`, `population`.
        answers: `annotator`, `item`, and the criteria.
        seed: Of the draws behind the intervals.

    Returns:
        `group`, `criterion`, `items`, `met` (of the sample), `share` (of all records) with `low` and `high`.
    """
    rows = []
    for criterion in CRITERIA:
        told = majority(answers, criterion).astype(bool).rename("met")
        joined = items.merge(told, left_on="item", right_index=True)
        rows += [
            {"group": name, "criterion": criterion, "items": len(part), "met": int(part["met"].sum())}
            | share_of(part, "met", seed=seed)
            for name, part in _groups(joined)
        ]
    return pd.DataFrame(rows)


def share_of(items: pd.DataFrame, column: str, *, seed: int = 0) -> dict[str, float]:
    """The share of all records that a stratified sample speaks for, with its interval.

    Args:
        items: `folder`, `dataset`, `direction`, `population`, and `column` (bool).
        column: What is counted.
        seed: Of the draws.

    Returns:
        `share`, `low`, `high`.
    """
    rng, share, drawn, total = np.random.default_rng(seed), 0.0, np.zeros(DRAWS), 0.0
    for _, stratum in items.groupby(STRATA):
        yes, n, weight = int(stratum[column].sum()), len(stratum), float(stratum["population"].iloc[0])
        share, total = share + weight * yes / n, total + weight
        drawn += weight * stats.beta.rvs(yes + 0.5, n - yes + 0.5, size=DRAWS, random_state=rng)
    return {"share": share / total} | _bounds(drawn / total, share / total)


def bad_share(items: pd.DataFrame, answers: pd.DataFrame) -> dict[str, float]:
    """The share of records that are no valid hard contrast: `share`, `low`, `high`, and `items`, how many were looked at."""
    told = ~majority(answers, "valid_contrast").astype(bool)
    joined = items.merge(told.rename("bad"), left_on="item", right_index=True)
    return share_of(joined, "bad") | {"items": len(joined)}


def failure_modes(items: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    """How many sampled edits failed in which way: a row per mode, a column per dataset and direction."""
    told = (
        majority(answers[answers["mode"].notna()], "mode") if answers["mode"].notna().any() else pd.Series(dtype=str)
    )
    joined = items.merge(told.rename("mode"), left_on="item", right_index=True)
    cells = (joined["dataset"] + " " + joined["direction"]).rename("group")
    table = pd.crosstab(joined["mode"], cells).reindex(list(MODES), fill_value=0)
    return table.assign(total=table.sum(axis=1)).reset_index()


def annotator_agreement(answers: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """How far each two annotators agree on the items that both have answered.

    Args:
        answers: `annotator`, `item` and the columns.
        columns: What was asked.

    Returns:
        `question`, `annotators`, `items`, `agreement` (share of equal answers), Cohen's `kappa`; NaN where both always say the same.
    """
    rows = []
    for column in columns:
        wide = answers.pivot(index="item", columns="annotator", values=column)
        for one, other in combinations(wide.columns, 2):
            both = wide[[one, other]].dropna()
            if len(both):
                left, right = both[one].astype(str), both[other].astype(str)
                is_constant = len({*left, *right}) == 1
                kappa = np.nan if is_constant else cohen_kappa_score(left, right)
                rows.append((column, f"{one}, {other}", len(both), accuracy_score(left, right), kappa))
    return pd.DataFrame(rows, columns=["question", "annotators", "items", "agreement", "kappa"])


def _bounds(drawn: np.ndarray, value: float) -> dict[str, float]:
    """`low` and `high`. Where all or none were right the value lies outside its posterior's middle; it bounds the interval then."""
    low, high = np.nanquantile(drawn, TAILS)
    return {"low": float(min(low, value)), "high": float(max(high, value))}


def _groups(items: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    groups = [("all", items), *items.groupby("direction")]
    if items["dataset"].nunique() > 1:
        groups += [
            *items.groupby("dataset"),
            *((" ".join(key), part) for key, part in items.groupby(["dataset", "direction"])),
        ]
    return groups
