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
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from repair_hf.evaluation.contrast import SCORES
from repair_hf.evaluation.intervals import interval
from repair_hf.evaluation.retrieval import DIRECTIONS
from repair_hf.runtime.options import UserError

CHANGES = ("repaired", "broken", "improved", "worsened", "unchanged")


def decides(metric: str) -> bool:
    """Whether a metric says if a training helped: R@1, also on further pairs, and both questions of a contrast set."""
    return metric.endswith("R@1") or metric in SCORES


def short_names(models: Sequence[str], option: str = "model") -> dict[str, str]:
    """Return a short name for each model, which also names its folder: the last parts of its id that are unique.

    Example:
        >>> short_names(["world/base", "runs/a/retriever", "runs/b/retriever"])
        {'base': 'world/base', 'a--retriever': 'runs/a/retriever', 'b--retriever': 'runs/b/retriever'}
    """
    if twice := sorted({model for model in models if list(models).count(model) > 1}):
        raise UserError(f"`{option}` names {', '.join(twice)} twice. Name each once.")
    parts, names = [Path(model).parts for model in models], {}
    for model, own in zip(models, parts, strict=True):
        others = [other for other in parts if other is not own]
        length = next((n for n in range(1, len(own)) if all(other[-n:] != own[-n:] for other in others)), len(own))
        names["--".join(own[-length:]).strip("/.") or "model"] = model
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
    found = Counter(zip(*(queries[name].to_pylist() for name in ("direction", "change")), strict=True))
    return {direction: {kind: found[direction, kind] for kind in CHANGES} for direction in DIRECTIONS}


def changed_cases(before: pa.Table, now: pa.Table) -> dict[str, dict[str, list[str]]]:
    """Return the ids of the cases that are right only now (`repaired`) and only before (`broken`), by metric.

    The tables are those of `evaluate_compositional` on the same cases.
    """
    rows, found = now.to_pandas(), {}
    rows["was"] = before["correct"].to_numpy()
    for (benchmark, measure), own in rows.groupby(["benchmark", "measure"], sort=False):
        kinds = {"repaired": ~own["was"] & own["correct"], "broken": own["was"] & ~own["correct"]}
        found[f"{benchmark}_{measure}"] = {kind: own["case_id"][some].tolist() for kind, some in kinds.items()}
    return found


def differences(
    before: Mapping[str, float],
    now: Mapping[str, float],
    before_samples: Mapping[str, np.ndarray],
    now_samples: Mapping[str, np.ndarray],
) -> dict[str, dict[str, float]]:
    """Return `difference`, `low` and `high` of each metric of both models, with the interval of the paired difference.

    The samples are a metric's (R,) values in resamples with the same draws.
    """
    found = {}
    for name in before_samples:
        if name in now_samples:
            low, high = interval(now_samples[name] - before_samples[name])
            found[name] = {"difference": now[name] - before[name], "low": low, "high": high}
    return found
