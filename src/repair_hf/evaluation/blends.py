"""Compare the blends of several tuned models: those of equal weight, and each model's best one.

A blend keeps more of the base as its weight gets smaller. So a blended model is compared with a blended one.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from repair_hf.evaluation.comparison import Measured, compare_pair, summary
from repair_hf.evaluation.provenance import plain_before

CHOSEN_BY = "blend_score"  # key of a blend's metrics, see `blend_score`


def compare_blends(
    metrics: Mapping[str, Mapping[str, Any]],
    measured: Mapping[str, Measured],
    weights: Mapping[str, float],
    split: str | None = None,
) -> list[dict[str, Any]]:
    """Compare each tuned model's blends with those of the first one.

    Args:
        metrics: By the name of a blend, `MODEL@WEIGHT`.
        measured: The ranks behind them.
        weights: By the same names.
        split: Where `CHOSEN_BY` of the metrics was measured; None compares blends of equal weight alone.

    Returns:
        The comparisons, see `compare_pair`, each with `chosen_on`: None at equal weights, else the split.
    """
    blends: dict[str, dict[float, str]] = {}
    for name, weight in weights.items():
        blends.setdefault(name.rpartition("@")[0], {})[weight] = name
    first = next(iter(blends))
    rows = [
        compare_pair(metrics, measured, model, other) | {"chosen_on": None}
        for model, other in equal_blends(blends, first)
    ]
    if split is not None:
        scores = {name: metrics[name][CHOSEN_BY] for name in weights}
        best = best_blends(blends, scores, first)
        rows += [compare_pair(metrics, measured, model, other) | {"chosen_on": split} for model, other in best]
    return rows


def blend_score(metrics: Mapping[str, Any], on_blend_pairs: Mapping[str, Any]) -> float:
    """Average R@1 on the pairs for choosing, and R@1 on further pairs: what is gained, and what is kept."""
    return statistics.fmean(summary(dict(metrics) | dict(on_blend_pairs)).values())


def equal_blends(blends: Mapping[str, Mapping[float, str]], reference: str) -> list[tuple[str, str]]:
    """Pair the blends of each model, by its name and their weight, with the reference's blends of equal weight."""
    return [
        (by_weight[weight], blends[reference][weight])
        for model, by_weight in blends.items()
        if model != reference
        for weight in sorted(by_weight.keys() & blends[reference].keys() - {0.0})
    ]


def best_blends(
    blends: Mapping[str, Mapping[float, str]], scores: Mapping[str, float], reference: str
) -> list[tuple[str, str]]:
    """Pair the best blend of each model with the reference's best one; of equals, the one that keeps most of the base.

    Args:
        blends: By model and weight.
        scores: Of each blend, on other pairs than those of the comparison.
        reference: The model to compare with.
    """
    best = {
        model: max((by_weight[weight] for weight in sorted(by_weight)), key=scores.__getitem__)
        for model, by_weight in blends.items()
    }
    return [(blend, best[reference]) for model, blend in best.items() if model != reference]


def plain_blends(models: Mapping[str, Any], weights: Mapping[str, float]) -> dict[str, list[str]]:
    """Map the blends of models trained with records to those of equal weight without, see `plain_before`."""
    baselines: dict[str, list[str]] = {}
    for weight in sorted(set(weights.values()) - {0.0}):
        baselines |= plain_before({name: models[name] for name in weights if weights[name] == weight})
    return {name: plain for name, plain in baselines.items() if plain}
