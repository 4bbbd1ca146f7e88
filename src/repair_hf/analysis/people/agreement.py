"""Agreement of people with the audit and with each other, and their view of the edits.

`items` are all that could be judged (`sampling.items_of`), `answers` what was (`judgements.read_judgements`). Counts
are those of the answers, as in the paper. Shares and metrics are those of the whole run: a stratum (verdict and
direction) weighs what it holds, not how many of it were judged. Each share within a stratum has Jeffreys' prior,
Beta(1/2, 1/2); an interval holds 95% of the posterior.

No answer is no number: a share or metric is NaN if it depends on a stratum without a clear answer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from repair_hf.analysis.people.judgements import CRITERIA, MODES, Task, majority, read_judgements
from repair_hf.analysis.people.sampling import items_of
from repair_hf.analysis.report import Finding
from repair_hf.analysis.run_data import RunData, gather
from repair_hf.analysis.tables import interval_cell
from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

DRAWS = 1000
TAILS = (0.025, 0.975)
QC_METRICS = ("precision", "recall", "accuracy", "kappa")
FINDINGS = ("agreement_qc", "annotators_qc", "agreement_edits", "failure_modes", "annotators_edits")
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
        `group`; `items` and the four counts of what was judged; each metric with `_low` and `_high`.
    """
    verdict = majority(answers, "verdict")
    judged = items.assign(genuine=items["item"].map(verdict == "genuine"))
    return pd.DataFrame([_qc_row(name, group, seed) for name, group in _groups(judged)])


def _qc_row(name: str, items: pd.DataFrame, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    cells, draws, counts = np.zeros(4), np.zeros((DRAWS, 4)), np.zeros(4, int)
    for (is_accepted, _), stratum in items.groupby(["accepted", "direction"]):
        pair = slice(0, 2) if is_accepted else slice(2, 4)
        yes, n, share, shares = _estimate(stratum, "genuine", rng)
        counts[pair] += [yes, n - yes]
        cells[pair] += len(stratum) * np.array([share, 1 - share])
        draws[:, pair] += len(stratum) * np.stack([shares, 1 - shares], 1)
    row: dict[str, Any] = {"group": name, "items": int(counts.sum())} | dict(
        zip(QC_CELLS, counts.tolist(), strict=True)
    )
    values, drawn = qc_metrics(cells), qc_metrics(draws)
    for metric in QC_METRICS:
        value = float(values[metric])
        row[metric] = value
        row[f"{metric}_low"], row[f"{metric}_high"] = _bounds(drawn[metric], value)
    return row


def edit_quality(items: pd.DataFrame, answers: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Count the edits that meet each criterion: overall and by direction.

    Returns:
        `group`, `criterion`, `items`, `met` (of what was judged), `share` (of all records) with `low` and `high`.
    """
    rows = []
    for criterion in CRITERIA:
        judged = items.assign(met=items["item"].map(majority(answers, criterion)))
        rows += [
            {"group": name, "criterion": criterion, "items": int(group["met"].count()), "met": int(group["met"].sum())}
            | share_of(group, "met", seed=seed)
            for name, group in _groups(judged)
        ]
    return pd.DataFrame(rows)


def share_of(items: pd.DataFrame, column: str, *, seed: int = 0) -> dict[str, float]:
    """Estimate the share of all items with `column`, which is missing where nobody judged: `share`, `low`, `high`."""
    rng, total, total_draws = np.random.default_rng(seed), 0.0, np.zeros(DRAWS)
    for _, stratum in items.groupby("direction"):
        _, _, share, shares = _estimate(stratum, column, rng)
        total += len(stratum) * share
        total_draws += len(stratum) * shares
    share = total / len(items)
    low, high = _bounds(total_draws / len(items), share)
    return {"share": share, "low": low, "high": high}


def _estimate(stratum: pd.DataFrame, column: str, rng: np.random.Generator) -> tuple[int, int, float, np.ndarray]:
    """Return how many are true, of how many, the share, and draws of it, (DRAWS,); NaN if there are none."""
    known = stratum[column].dropna().astype(bool)
    yes, n = int(known.sum()), len(known)
    if not n:
        return 0, 0, np.nan, np.full(DRAWS, np.nan)
    return yes, n, yes / n, stats.beta.rvs(yes + 0.5, n - yes + 0.5, size=DRAWS, random_state=rng)


def failure_modes(items: pd.DataFrame, answers: pd.DataFrame) -> pd.DataFrame:
    """Count the failure modes of the judged edits: a row per mode, a column per direction.

    No mode is an answer, too: an edit fails if most annotators name the same mode. Directions without a clear answer
    have no column.
    """
    modes = majority(answers.assign(mode=answers["mode"].fillna(NO_MODE)), "mode")
    judged = items.assign(mode=items["item"].map(modes))
    table = pd.crosstab(judged["mode"], judged["direction"]).reindex(list(MODES), fill_value=0)
    return table.assign(total=table.sum(axis=1, min_count=1)).reset_index()


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


def _bounds(drawn: np.ndarray, value: float) -> tuple[float, float]:
    """Low and high. If all or none were right, the value may lie outside these quantiles; it is the bound then."""
    low, high = np.quantile(drawn, TAILS)
    return float(np.fmin(low, value)), float(np.fmax(high, value))


def _groups(items: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [("all", items), *items.groupby("direction")]


def people_findings(data: RunData, judgements: Sequence[str | Path]) -> list[Finding]:
    """Collect the findings of files of judgements; none without files."""
    findings = []
    judged = _judged(data, judgements)
    if "qc" in judged:
        items, answers = judged["qc"]
        table = qc_agreement(items, answers)
        note = (
            "Counts are those of the judged failures. Precision, recall, accuracy and Cohen's kappa are those of the "
            "whole run: each verdict and direction weighs what it holds. In brackets: 95% interval (Jeffreys' prior)."
        )
        findings.append(Finding("agreement_qc", "The audit against people", note, _with_intervals(table), data=table))
        findings += _annotators("qc", answers, ["verdict"])
    if "edits" in judged:
        items, answers = judged["edits"]
        table = edit_quality(items, answers)
        note = f"{_bad_note(table)} Shares in %."
        findings.append(Finding("agreement_edits", "Edits, as people see them", note, _wide(table), data=table))
        note = "Failure modes of the edits that miss a criterion."
        findings.append(Finding("failure_modes", "How edits fail", note, failure_modes(items, answers)))
        findings += _annotators("edits", answers, list(CRITERIA))
    return findings


def sentences_for_card(folder: Path, judgements: Sequence[str | Path]) -> dict[str, str]:
    """Sentences for a dataset card on people's view of the audit (`qc`) and the edits (`edits`), if they judged."""
    if not judgements:
        return {}
    sentences, judged = {}, _judged(gather(folder), judgements)
    if "qc" in judged:
        row = qc_agreement(*judged["qc"]).iloc[0]
        sentences["qc"] = f"People judged {row['items']:,} of its verdicts"
        if not np.isnan(row["precision"]):
            interval = f"95% interval {row['precision_low']:.1%} to {row['precision_high']:.1%}"
            sentences["qc"] += f": {row['precision']:.1%} ({interval}) of the accepted failures are genuine"
        sentences["qc"] += "."
    if "edits" in judged:
        sentences["edits"] = _bad_note(edit_quality(*judged["edits"]))
    return sentences


def _bad_note(quality: pd.DataFrame) -> str:
    good = quality.query("group == 'all' and criterion == 'valid_contrast'").iloc[0]
    if np.isnan(good["share"]):
        return f"People judged {good['items']:,} edits: too few for a share of all records."
    return (
        f"People judged {good['items']:,} edits: an estimated {1 - good['share']:.1%} of all records "
        f"(95% interval {1 - good['high']:.1%} to {1 - good['low']:.1%}) are no valid hard contrast."
    )


def _judged(data: RunData, files: Sequence[str | Path]) -> dict[Task, tuple[pd.DataFrame, pd.DataFrame]]:
    """Return the items and answers of each task that was judged; answers to items of other runs are left out."""
    judged: dict[Task, tuple[pd.DataFrame, pd.DataFrame]] = {}
    for task, answers in read_judgements(files).items():
        items = items_of(data, task)
        known = answers[answers["item"].isin(items["item"])]
        if known.empty:
            raise UserError(f"The judgements ({task}) are of another run: {data.name} holds none of their items.")
        if len(known) < len(answers):
            logger.warning("Left out %d judgements (%s) of items that %s does not hold.",
                           len(answers) - len(known), task, data.name)  # fmt: skip
        judged[task] = (items, known)
    return judged


def _with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """Format `qc_agreement`: a column per group, a row per number, metrics with their interval in brackets."""
    rows = table[["group", "items", *QC_CELLS]].copy()
    for name in QC_METRICS:
        intervals = table[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
        rows[name if name == "kappa" else f"{name}, %"] = [interval_cell(name, *interval) for interval in intervals]
    return rows.set_index("group").T.rename_axis(columns=None, index="").reset_index()


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
