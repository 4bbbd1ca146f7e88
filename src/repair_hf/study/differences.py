"""Differences of methods from plain training, with intervals that say what they cover.

A difference is the mean over seeds of a method minus plain training of the same seed, query by query. Its 95% interval
covers other images: queries of one image count together (cluster-robust standard error). With several seeds it covers
other seeds, too: by a t-distribution, whose half width is added in quadrature. With one seed it covers images alone.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from repair_hf.evaluation.retrieval import DIRECTIONS, KS
from repair_hf.study.plan import SCORED
from repair_hf.study.results import MEASURES, Row

RETRIEVAL = tuple(f"{way}_{kind}" for way in DIRECTIONS for kind in (*(f"R@{k}" for k in KS), "MRR"))
NEAR = tuple(f"{way}_{measure}" for way in DIRECTIONS for measure in MEASURES)
BOTH = "both"  # the mean of `SCORED`
Z = statistics.NormalDist().inv_cdf(0.975)
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5% quantiles, by degrees of freedom from 1


@dataclass(frozen=True)
class Difference:
    """A mean difference and the bounds of its 95% interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        star = "" if self.low <= 0 <= self.high else " *"
        return f"{100 * self.mean:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]{star}"


def differences(rows: Sequence[Row], others: Sequence[Row], base: Row) -> dict[str, Difference]:
    """Compare rows with others of the same seeds, or with one row, by metric; `both` is the mean of `SCORED`.

    The base's row names the image of each query.
    """
    others = list(others) * (len(rows) if len(others) == 1 else 1)
    found, parts, n_images = {}, {}, len(base.ranks["i2t"])
    for name in (*RETRIEVAL, *NEAR):
        if (image := images_of(name, base)) is not None:
            each = [
                query_values(name, row) - query_values(name, other) for row, other in zip(rows, others, strict=True)
            ]
            parts[name] = [float(one.mean()) for one in each], influence(np.mean(each, axis=0), image, n_images)
            found[name] = _interval(*parts[name])
    scored = [parts[name] for name in SCORED if name in parts]
    seeds = [statistics.fmean(each) for each in zip(*(gains for gains, _ in scored), strict=True)]
    found[BOTH] = _interval(seeds, np.mean([of_image for _, of_image in scored], axis=0))
    return found


def mean_gain(
    rows: Sequence[Row], others: Sequence[Row], base: Row, metrics: Sequence[str]
) -> tuple[float, np.ndarray]:
    """Return the mean of some metrics' gains, and how far each image moves it, (N,); seeds are averaged.

    Such pairs can be subtracted from one another; `of_images` gives their interval.
    """
    means, moved = [], []
    for name in metrics:
        if (image := images_of(name, base)) is not None:
            each = [
                query_values(name, row) - query_values(name, other) for row, other in zip(rows, others, strict=True)
            ]
            means.append(float(np.mean(each)))
            moved.append(influence(np.mean(each, axis=0), image, len(base.ranks["i2t"])))
    return statistics.fmean(means), np.mean(moved, axis=0)


def of_images(mean: float, of_image: np.ndarray) -> Difference:
    """Return a difference whose interval covers other images alone."""
    return _interval([mean], of_image)


def influence(values: np.ndarray, image: np.ndarray, n_images: int) -> np.ndarray:
    """Return how far each image moves the mean of some queries' values: (Q,), (Q,) to (N,); they sum to 0."""
    return np.bincount(image, weights=values - values.mean(), minlength=n_images) / len(values)


def _interval(gains: Sequence[float], of_image: np.ndarray) -> Difference:
    """Return the interval of the mean over seeds, see the head of this file."""
    n, mean = len(of_image), statistics.fmean(gains)
    half = Z * math.sqrt(float(np.square(of_image).sum()) * n / max(n - 1, 1))
    if len(gains) > 1:
        quantile = T[min(len(gains) - 1, len(T)) - 1]
        half = math.hypot(half, quantile * statistics.stdev(gains) / math.sqrt(len(gains)))
    return Difference(mean, mean - half, mean + half)


def images_of(metric: str, base: Row) -> np.ndarray | None:
    """Return the image of each query of a metric; None if it was not measured."""
    way, _, measure = metric.partition("_")
    if measure in MEASURES:
        return np.array(base[f"near_{way}_image"], np.int64) if metric in base.near else None
    caption_image = np.array(base["caption_image"], np.int64)
    return caption_image if way == "t2i" else np.arange(len(base.ranks["i2t"]))


def query_values(metric: str, row: Row) -> np.ndarray:
    """Return the value of each query, (Q,), whose mean is the metric."""
    way, _, measure = metric.partition("_")
    if measure in MEASURES:
        return row.near[metric].astype(float)
    return 1 / row.ranks[way] if measure == "MRR" else (row.ranks[way] <= int(measure[2:])).astype(float)
