"""Compare two models on the same queries: changed ranks, and differences of metrics with confidence intervals.

| change | rank of the best answer |
|---|---|
| `repaired` | not 1 before, 1 now |
| `broken` | 1 before, not 1 now |
| `improved`, `worsened` | smaller or larger, and not 1 before or now |
| `unchanged` | the same |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from repair_hf.evaluation.contrast import SCORES
from repair_hf.evaluation.intervals import interval
from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.runtime.options import UserError

CHANGES = ("repaired", "broken", "improved", "worsened", "unchanged")
FEW = 200  # images; with fewer, an interval of R@1 is about ten points wide
RECALL = ("i2t_R@1", "t2i_R@1")


def verdict(differences: Iterable[Mapping[str, float]], n_images: int) -> str:
    """Say whether differences of R@1 on as many images show a gain: `yes`, `no` (a loss) or `undecided`.

    It is `yes` if an interval lies above 0 and none below, `no` if one lies below 0 and none above. With fewer than
    200 images it is `undecided`: intervals of so few mean little.
    """
    bounds = [(gain["low"], gain["high"]) for gain in differences]
    rose, fell = any(low > 0 for low, _ in bounds), any(high < 0 for _, high in bounds)
    if n_images < FEW or rose == fell:
        return "undecided"
    return "yes" if rose else "no"


def too_few(n_images: int) -> str:
    """Say that so many images are too few for a conclusion; an empty text if they are enough."""
    return f"{n_images:,} images are too few for a conclusion: take {FEW:,} or more." if n_images < FEW else ""


class Measured(NamedTuple):
    """What was measured of a model."""

    ranks: pa.Table
    cases: pa.Table | None
    also: dict[str, pa.Table]  # ranks of further pairs, by name
    samples: dict[str, np.ndarray]  # the metrics in each resample, (R,)


def compare_models(
    metrics: Mapping[str, Mapping[str, Any]], measured: Mapping[str, Measured], baselines: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Any], pa.Table]:
    """Compare each model with the first, and those trained with records with those before them without.

    Args:
        metrics: By short name.
        measured: The ranks and cases behind them.
        baselines: For each model trained with records, those without; none if there is none.

    Returns:
        `reference`, the first model; by model the `differences` from it, and numbers of changed `queries` and `cases`.
        `repair` is a list of such comparisons of models trained with records, each with `model`, `reference`, the one
        without records, the `verdict`, and the differences of averages (`summary`); the reference is None if there is
        none. Beside it the joined ranks of each comparison.
    """
    queries: dict[tuple[str, str], pa.Table] = {}

    def compare(model: str, reference: str) -> dict[str, Any]:
        before, now = measured[reference], measured[model]
        gains = differences(metrics[reference], metrics[model], before.samples, now.samples)
        queries[model, reference] = compare_queries(before.ranks, now.ranks)
        cases: dict[str, Any] = {}
        if before.cases is not None and now.cases is not None:
            changed = changed_cases(before.cases, now.cases).items()
            cases = {metric: {kind: len(ids) for kind, ids in kinds.items()} for metric, kinds in changed}
        return {"differences": gains, "queries": count_changes(queries[model, reference]), "cases": cases}

    def repair(model: str, reference: str | None) -> dict[str, Any]:
        if reference is None:
            return {"model": model, "reference": None}
        compared = compare(model, reference)
        helped = verdict([compared["differences"][name] for name in RECALL], metrics[model]["n_images"])
        means = map(
            summary, (metrics[reference], metrics[model], measured[reference].samples, measured[model].samples)
        )
        named = {"model": model, "reference": reference, "verdict": helped}
        return {**named, "summary": differences(*means), **compared}

    first, *others = measured
    changes = {name: compare(name, first) for name in others}
    repairs = []
    for name, references in baselines.items():
        repairs += [repair(name, plain) for plain in references] or [repair(name, None)]
    comparison: dict[str, Any] = {"reference": first}
    for key in ("differences", "queries", "cases"):
        comparison[key] = {name: change[key] for name, change in changes.items()}
    return comparison | {"repair": repairs}, pa.concat_tables(queries.values())


def summary(values: Mapping[str, Any]) -> dict[str, Any]:
    """Average the metrics that decide: `mean_R@1`, `kept_R@1` on further pairs, `contrast` over both questions.

    Args:
        values: Metrics, or the (R,) samples of metrics, by name. An average whose parts are missing is left out.
    """
    kept = [name for name in values if name.endswith("R@1") and name not in RECALL]
    parts = {"mean_R@1": RECALL, "kept_R@1": kept, "contrast": SCORES}
    return {
        name: sum(values[part] for part in own) / len(own)
        for name, own in parts.items()
        if own and all(part in values for part in own)
    }


def decides(metric: str) -> bool:
    """Whether a metric says if a training helped: R@1, also on further pairs, and both questions of a contrast set."""
    return metric.endswith("R@1") or metric in SCORES


def short_names(models: Sequence[str], option: str = "model") -> dict[str, str]:
    """Return a short name for each model, which also names its folder: the last parts of its id that are unique.

    Example:
        >>> short_names(["world/base", "runs/a/retriever", "runs/b/retriever"])
        {'base': 'world/base', 'a--retriever': 'runs/a/retriever', 'b--retriever': 'runs/b/retriever'}
    """
    twice = sorted({model for model in models if list(models).count(model) > 1})
    if twice:
        raise UserError(f"`{option}` names {', '.join(twice)} twice. Name each once.")
    all_parts, names = [Path(model).parts for model in models], {}
    for model, parts in zip(models, all_parts, strict=True):
        others = [other for other in all_parts if other is not parts]
        length = 1
        while length < len(parts) and any(other[-length:] == parts[-length:] for other in others):
            length += 1
        names["--".join(parts[-length:]).strip("/.") or "model"] = model
    if len(names) < len(models):
        raise UserError(
            f"`{option}` names {', '.join(models)}, whose short names are equal; rename a folder, or leave one out."
        )
    return names


def changes(before: np.ndarray, now: np.ndarray) -> np.ndarray:
    """Name the change of each query, (Q,), by the rank of its best answer before and now."""
    is_repaired, is_broken = (before > 1) & (now == 1), (before == 1) & (now > 1)
    names = np.select([is_repaired, is_broken, now < before, now > before], CHANGES[:4], "unchanged")
    return names.astype(object)


def compare_queries(before: pa.Table, now: pa.Table) -> pa.Table:
    """Join the ranks of two models by query.

    Returns:
        `reference` and `model` (short names); `direction`, `q_id`; `before_rank`, `rank`; `before_margin`, `margin`
        (cosine of the best answer minus that of the best wrong one, null if no candidate is wrong); `before_top1_id`,
        `top1_id`; `change`.

    Raises:
        UserError: If the queries differ.
    """
    if not all(before[name].equals(now[name]) for name in ("direction", "q_id")):
        names = " and ".join(f"`{ranks['model'][0].as_py()}`" for ranks in (before, now))
        raise UserError(f"The ranks of {names} are of different queries; evaluate both on the same pairs.")
    old, new = before["gt_rank"].to_numpy(), now["gt_rank"].to_numpy()
    return pa.table(
        {
            "reference": before["model"],
            "model": now["model"],
            "direction": now["direction"],
            "q_id": now["q_id"],
            "before_rank": old,
            "rank": new,
            "before_margin": pc.subtract(before["gt_score"], before["fp_score"]),
            "margin": pc.subtract(now["gt_score"], now["fp_score"]),
            "before_top1_id": before["top1_id"],
            "top1_id": now["top1_id"],
            "change": pa.array(changes(old, new), pa.string()),
        }
    )


def count_changes(queries: pa.Table) -> dict[str, dict[str, int]]:
    """Count the queries by direction and change."""
    counts = Counter(zip(queries["direction"].to_pylist(), queries["change"].to_pylist(), strict=True))
    return {direction: {kind: counts[direction, kind] for kind in CHANGES} for direction in DIRECTIONS}


def changed_cases(before: pa.Table, now: pa.Table) -> dict[str, dict[str, list[str]]]:
    """Return the ids of the cases that are right only now (`repaired`) and only before (`broken`), by metric.

    The tables are those of `evaluate_compositional` on the same cases.
    """
    rows, changed = now.to_pandas(), {}
    rows["was_correct"] = before["correct"].to_numpy()
    for (benchmark, measure), cases in rows.groupby(["benchmark", "measure"], sort=False):
        repaired = cases[~cases["was_correct"] & cases["correct"]]
        broken = cases[cases["was_correct"] & ~cases["correct"]]
        changed[f"{benchmark}_{measure}"] = {
            "repaired": repaired["case_id"].tolist(),
            "broken": broken["case_id"].tolist(),
        }
    return changed


def differences(
    before: Mapping[str, float],
    now: Mapping[str, float],
    before_samples: Mapping[str, np.ndarray],
    now_samples: Mapping[str, np.ndarray],
) -> dict[str, dict[str, float]]:
    """Return `difference`, `low` and `high` of each metric of both models, with the interval of the paired difference.

    The samples are a metric's (R,) values in resamples with the same draws.
    """
    gains = {}
    for name in before_samples:
        if name in now_samples:
            low, high = interval(now_samples[name] - before_samples[name])
            gains[name] = {"difference": now[name] - before[name], "low": low, "high": high}
    return gains
