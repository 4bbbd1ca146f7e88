"""All findings of a run: whether repair helped, failures, edits, costs, people.

What answers whether repair helped is what `repair-hf evaluate` compared below the run's folder: the difference between
a model that was trained with records and one that was trained without, from the same base, for as many steps. The
change from the base does not: plain training raises R@1, too.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from repair_hf.analysis.blend_curve import blend_rows, curve
from repair_hf.analysis.costs import PAID_HEADS, describe_paid, paid_rows
from repair_hf.analysis.forest import forest
from repair_hf.analysis.people.agreement import people_findings
from repair_hf.analysis.report import Answers, Finding
from repair_hf.analysis.run_data import RunData
from repair_hf.analysis.tables import SIDES, difference_cell, label, percent, round_rows
from repair_hf.evaluation.comparison import decides, short_names, too_few
from repair_hf.evaluation.ranks import FILE as RANKS
from repair_hf.evaluation.training_data import find_trainings, steps_of
from repair_hf.llm.cost import Usage, paid_in
from repair_hf.records.columns import DIRECTIONS, REASONS, REJECTED
from repair_hf.runtime.files import read_json, read_yaml
from repair_hf.synthesis.steps import ERROR_TYPES

STAGES = {"audit": "passed the audit", "instruct": "instructed", "edit": "became records"}  # what passing is called
DENSITY = "multi-label density"


def run_findings(data: RunData, judgements: Sequence[str | Path] = ()) -> tuple[Answers, list[Finding]]:
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
        *people_findings(data, judgements),
    ]
    return Answers(helped, describe_paid(paid), _what_to_look_at(data), blend_finding(data.root)), sections


def _what_to_look_at(data: RunData) -> list[tuple[str, str]]:
    """Name what went wrong most often and what only eyes can judge, each with the section that shows it."""
    found = []
    if len(data.dropped):
        counts, total = data.dropped["reason"].value_counts(), len(data.dropped) + len(data.kept)
        found.append(
            (f"{counts.iloc[0]:,} of {total:,} failures were dropped: {REASONS[counts.index[0]]}.", "dropped")
        )
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


def blend_finding(root: Path | None) -> Finding | None:
    """What blends gain, and keep on further pairs: those of the first folder of `repair-hf evaluate --blends`."""
    for path in sorted(root.rglob("differences.json")) if root is not None else ():
        metrics = read_json(path.parent / "metrics.json")
        configs = {name: read_yaml(path.parent / name / "config.yaml") for name in metrics if "@" in name}
        weights = {name: config["weight"] for name, config in configs.items() if "weight" in config}
        also = [key.removesuffix("_i2t_R@1") for key in next(iter(metrics.values())) if key.endswith("_i2t_R@1")]
        if weights and also:
            rows = blend_rows(metrics, weights, also)
            table = rows.assign(direction=rows["direction"].map(SIDES), weight=rows["weight"].map("{:g}".format))
            table = table.assign(**{name: rows[name].map("{:.1f}".format) for name in ("gained", "kept")})
            note = (
                "R@1 in %: gained on these pairs, kept on further ones, by the weight of the tuned model; 0 is the "
                "base. `repair-hf export blend` writes the model at one weight."
            )
            return Finding("blends", "What is gained, and what is kept?", note, table, data=rows, plot=curve(rows))
    return None


EVALUATE = "`repair-hf evaluate BASE PLAIN REPAIRED --output …`"


def repair_findings(root: Path | None) -> list[Finding]:
    """Return what opens a report, and how the ranks of queries changed."""
    found = Evaluations({}, [], [], []) if root is None else find_evaluations(root)
    names = {Path(folder): name for name, folder in short_names(list(map(str, found.measured))).items()}

    def named(compared: Sequence[Compared]) -> dict[str, dict[str, Any]]:
        both = ((names[folder / one["model"]], names[folder / one["reference"]], one) for folder, one in compared)
        return {f"{model} − {reference}": one for model, reference, one in both}

    repairs = named(found.repairs)
    levels = {names[folder]: one for folder, one in found.measured.items()}
    table = [
        {"model": name} | {label(key): f"{100 * one[key]:.1f}" for key in one["intervals"] if decides(key)}
        for name, one in levels.items()
    ]
    data = []
    for name, one in (repairs | named(found.others)).items():
        gains = {metric: gain for metric, gain in one["differences"].items() if decides(metric)}
        table.append({"model": name} | {label(key): difference_cell(key, gain) for key, gain in gains.items()})
        data += [{"comparison": name, "metric": metric} | gain for metric, gain in gains.items()]
    rows = pd.DataFrame(data)
    sizes = [found.measured[folder / one["model"]].get("n_images", 0) for folder, one in found.repairs]
    decisive = [row for row in data if row["comparison"] in repairs]
    verdicts = {one["verdict"] for one in repairs.values()}
    answer = _answer(bool(levels), verdicts, decisive, found.unanswered, min(sizes, default=0))
    helped = Finding("repair", "Did repair help?", answer, pd.DataFrame(table) if levels else None)
    if data:
        helped = replace(helped, data=rows, plot=forest(rows))
    changed = [
        {"comparison": name, "direction": way} | counts
        for name, one in repairs.items()
        for way, counts in one["queries"].items()
    ]
    if not changed:
        return [helped]
    note = "repaired: first only with records; broken: first only without; improved, worsened: first with neither."
    return [helped, Finding("ranks", "Ranks with and without records", note, pd.DataFrame(changed))]


Compared: TypeAlias = tuple[Path, dict[str, Any]]
"""The folder of an evaluation, and one of its comparisons."""


class Evaluations(NamedTuple):
    """What was evaluated below a folder."""

    measured: dict[Path, dict[str, Any]]  # metrics of each model by its folder, in the order of `evaluate`
    repairs: list[Compared]  # models trained with records, against those without of the same base and steps
    others: list[Compared]  # other models, against the same models without records
    unanswered: list[str]  # folders of models with records that no model without is compared with


def find_evaluations(root: Path) -> Evaluations:
    """Find what was evaluated below a folder. A comparison of the same weights on the same pairs counts once."""
    found, known = Evaluations({}, [], [], []), set()
    for folder in (path.parent for path in sorted(root.rglob("differences.json"))):
        metrics = read_json(folder / "metrics.json")
        compared = read_json(folder / "differences.json")
        found.measured.update({folder / name: each for name, each in metrics.items()})
        repairs = [one for one in compared.get("repair", ()) if one["reference"] is not None]
        plain = {one["reference"] for one in repairs}
        first = [{"model": name, "reference": compared.get("reference"), "differences": gains}
                 for name, gains in compared.get("differences", {}).items()]  # fmt: skip
        others = [one for one in first if one["reference"] in plain]
        for rows, into in ((repairs, found.repairs), (others, found.others)):
            for one in rows:
                key = tuple(_weights(folder, metrics, one[role]) for role in ("model", "reference"))
                if key not in known:
                    known.add(key)
                    into.append((folder, one))
        alone = {one["model"] for one in compared.get("repair", ())} - {one["model"] for one in repairs}
        found.unanswered.extend(str(metrics[name].get("model", name)) for name in sorted(alone))
    for folder in (path.parent for path in sorted(root.rglob(RANKS))):
        if folder not in found.measured and (folder / "metrics.json").is_file():
            found.measured[folder] = read_json(folder / "metrics.json", needs=("intervals",))
    return found


def _weights(folder: Path, metrics: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Name the weights of a model and the pairs that it was measured on; its folder if they are not on record."""
    keys = ("model_digest", "pairs_fingerprint")
    return tuple(str(metrics[name].get(key, folder / name)) for key in keys)


def _answer(
    is_measured: bool,
    verdicts: set[str],
    differences: list[dict[str, Any]],
    unanswered: Sequence[str],
    least_images: int,
) -> str:
    """Answer by the verdicts of `evaluate` on models trained with records and without, of the same base and steps."""
    if not is_measured:
        return f"Not measured. Run {EVALUATE} with a folder below this one."
    recall = [row for row in differences if row["metric"] in ("i2t_R@1", "t2i_R@1")]
    if not recall:
        return (
            "Not known: plain training raises R@1 too, and no model was measured that was trained without records, "
            f"from the same base, for as many steps. {_what_to_run(unanswered)}"
        )
    rose, fell = sum(row["low"] > 0 for row in recall), sum(row["high"] < 0 for row in recall)
    verdict = verdicts.pop() if len(verdicts) == 1 else "undecided"
    few = f" {too_few(least_images)}" if too_few(least_images) else ""
    worse = [f"{label(row['metric'])} of {row['comparison']}" for row in differences if row["high"] < 0]
    return (
        f"{verdict.capitalize()}: R@1 rose in {rose} and fell in {fell} of {len(recall)} comparisons with training "
        f"without records, from the same base, for as many steps.{few} In %; *: the 95% interval excludes 0."
        + (f" Worse with records: {', '.join(worse)}." if worse else "")
    )


def _what_to_run(models: Sequence[str]) -> str:
    trained = next((find for model in models if (find := find_trainings(model))), None)
    if trained is None:
        return f"Train one without `--records`, and run {EVALUATE} with a folder below this one."
    folder, options = next(iter(trained.items()))
    base, pairs = (shlex.quote(str(options.get(name))) for name in ("model", "pairs"))
    plain, steps = shlex.quote(str(folder.parent / "plain")), steps_of(folder)
    return (
        f"Run `repair-hf train --model {base} --pairs {pairs} --max-steps {steps} --output {plain}`, then `repair-hf "
        f"evaluate {base} {plain} {shlex.quote(str(folder))} --pairs {pairs} --output …` with a folder below this one."
    )
