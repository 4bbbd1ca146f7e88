"""Compare two models on the same queries: changed ranks, and differences of metrics with confidence intervals.

| change | rank of the best answer |
|---|---|
| `repaired` | not 1 before, 1 now |
| `broken` | 1 before, not 1 now |
| `improved`, `worsened` | smaller or larger, and not 1 before or now |
| `unchanged` | the same |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

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
    samples: dict[str, np.ndarray]  # the metrics in each resample, (R,)


def compare_models(
    metrics: Mapping[str, Mapping[str, Any]], measured: Mapping[str, Measured], baselines: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Compare each model with the first, and those trained with records with those before them without.

    Args:
        metrics: By short name.
        measured: The ranks behind them.
        baselines: For each model trained with records, those without; none if there is none.

    Returns:
        `reference`, the first model; by model the `differences` from it, and numbers of changed `queries`. `repair` is
        a list of such comparisons of models trained with records, see `compare_pair`; the reference is None if there
        is no model without.
    """
    first, *others = measured
    changes = {name: compare_pair(metrics, measured, name, first) for name in others}
    repairs: list[dict[str, Any]] = []
    for name, references in baselines.items():
        repairs += [compare_pair(metrics, measured, name, plain) for plain in references] or [
            {"model": name, "reference": None}
        ]
    return {
        "reference": first,
        "differences": {name: change["differences"] for name, change in changes.items()},
        "queries": {name: change["queries"] for name, change in changes.items()},
        "repair": repairs,
    }


def compare_pair(
    metrics: Mapping[str, Mapping[str, Any]], measured: Mapping[str, Measured], model: str, reference: str
) -> dict[str, Any]:
    """Compare a model with another one.

    Returns:
        `model` and `reference`, their names; the `differences` of metrics and of averages (`summary`); the `verdict`
        on `n_images`; numbers of changed `queries`.
    """
    before, now = measured[reference], measured[model]
    gains = differences(metrics[reference], metrics[model], before.samples, now.samples)
    averages = differences(
        summary(metrics[reference]), summary(metrics[model]), summary(before.samples), summary(now.samples)
    )
    n_images = metrics[model]["n_images"]
    return {
        "model": model,
        "reference": reference,
        "verdict": verdict([gains[name] for name in RECALL], n_images),
        "n_images": n_images,
        "summary": averages,
        "differences": gains,
        "queries": count_changes(before.ranks, now.ranks),
    }


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


def short_names(models: Sequence[str], option: str = "model", taken: str | None = None) -> dict[str, str]:
    """Return a short name for each model, which also names its folder: the last parts of its id that are unique.

    No model may have the name `taken`.

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
    if taken in names:
        raise UserError(
            f"The short name of `{option}` {names[taken]} is `{taken}`, which the tables use for a retriever that "
            "ranks at random. Rename its folder, or copy it to one of another name."
        )
    return names


def count_changes(before: pa.Table, now: pa.Table) -> dict[str, dict[str, int]]:
    """Count the queries by direction and change of the rank, from the ranks of two models.

    Raises:
        UserError: If the queries differ.
    """
    if not all(before[name].equals(now[name]) for name in ("direction", "q_id")):
        names = " and ".join(f"`{ranks['model'][0].as_py()}`" for ranks in (before, now))
        raise UserError(f"The ranks of {names} are of different queries; evaluate both on the same pairs.")
    direction = now["direction"].to_numpy()
    old, new = before["gt_rank"].to_numpy(), now["gt_rank"].to_numpy()
    is_repaired, is_broken = (old > 1) & (new == 1), (old == 1) & (new > 1)
    change = np.select([is_repaired, is_broken, new < old, new > old], CHANGES[:4], CHANGES[4])
    return {
        side: {kind: int(np.count_nonzero((direction == side) & (change == kind))) for kind in CHANGES}
        for side in DIRECTIONS
    }


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
