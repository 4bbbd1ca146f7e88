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
from repair_hf.study.results import MEASURES, SCORED, Row

RETRIEVAL = tuple(f"{way}_{kind}" for way in DIRECTIONS for kind in (*(f"R@{k}" for k in KS), "MRR"))
NEAR = tuple(f"{way}_{measure}" for way in DIRECTIONS for measure in MEASURES)
BOTH = "both"  # the mean of `SCORED`
Z = statistics.NormalDist().inv_cdf(0.975)
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5% quantiles, by degrees of freedom from 1


@dataclass(frozen=True)
class Gain:
    """The mean of some metrics' gains over others: of each seed, and how far each image moves it, (N,).

    Attributes:
        seeds: One value, for an interval that covers other images alone; or one of each seed.
    """

    seeds: Sequence[float]
    of_image: np.ndarray

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seeds)

    @property
    def half(self) -> float:
        """Half the width of the interval, see the head of this file."""
        n, count = len(self.of_image), len(self.seeds)
        images = Z * math.sqrt(float(np.square(self.of_image).sum()) * n / max(n - 1, 1))
        quantile = T[min(count - 1, len(T)) - 1]
        return images if count == 1 else math.hypot(images, quantile * statistics.stdev(self.seeds) / math.sqrt(count))

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def of_images(self, other: Gain | None = None) -> Gain:
        """Return the gain, or its distance from another one, with an interval that covers other images alone."""
        if other is None:
            return Gain([self.mean], self.of_image)
        return Gain([self.mean - other.mean], self.of_image - other.of_image)

    def __str__(self) -> str:
        star = "" if self.low <= 0 <= self.high else " *"
        return f"{100 * self.mean:+.1f} [{100 * self.low:+.1f}, {100 * self.high:+.1f}]{star}"


def gain(rows: Sequence[Row], others: Sequence[Row], base: Row, metrics: Sequence[str]) -> Gain:
    """Compare rows with others of the same seeds, in the mean of those of some metrics that were measured.

    The base's row names the image of each query.
    """
    seeds, moved, n_images = [], [], len(base.ranks["i2t"])
    for name in filter(base.queries.__contains__, metrics):
        each = [row.queries[name] - other.queries[name] for row, other in zip(rows, others, strict=True)]
        values = np.mean(each, axis=0)  # (Q,)
        seeds.append([float(one.mean()) for one in each])
        of_images = np.bincount(images_of(name, base), weights=values - values.mean(), minlength=n_images)
        moved.append(of_images / len(values))
    return Gain([statistics.fmean(each) for each in zip(*seeds, strict=True)], np.mean(moved, axis=0))


def differences(rows: Sequence[Row], others: Sequence[Row], base: Row) -> dict[str, Gain]:
    """Compare rows with others of the same seeds, by metric; `both` is the mean of `SCORED`."""
    found = {name: gain(rows, others, base, [name]) for name in (*RETRIEVAL, *NEAR) if name in base.queries}
    return found | {BOTH: gain(rows, others, base, SCORED)}


def images_of(metric: str, base: Row) -> np.ndarray:
    """Return the image of each query of a metric, (Q,)."""
    way, _, measure = metric.partition("_")
    if measure in MEASURES:
        return np.array(base[f"near_{way}_image"], np.int64)
    return np.array(base["caption_image"], np.int64) if way == "t2i" else np.arange(len(base.ranks["i2t"]))
