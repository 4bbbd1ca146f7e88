"""The common form of compositional benchmarks: pictures, true captions, and captions that are almost true.

A benchmark is a loader of cases, a judge of their cosines, and the metrics. Each distinct picture and caption is
embedded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from repair_hf.evaluation.pictures import Photographs
from repair_hf.runtime.run_folder import digest

# Maps (n, a, b) cosines of pictures with captions to (n,) margins per measure.
Judge = Callable[[np.ndarray], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Metric:
    """An accuracy over the cases of a benchmark."""

    name: str  # its key is `{benchmark}_{name}`
    measure: str  # the key of the judge's margins
    groups: tuple[str, ...] | None = None  # the groups of cases to include; None for all
    weights: tuple[float, ...] | None = None  # of the groups' accuracies in their mean; None pools the cases (micro)
    ties_right: bool = False


@dataclass(frozen=True)
class Case:
    """One question of a benchmark."""

    id: str  # unique
    group: str  # category, relation, seed, or whatever the metrics distinguish
    pictures: tuple[Any, ...]  # rows of the benchmark's pictures; while they are read, names of files with a box
    captions: tuple[str, ...]
    picture_id: str  # the picture with which it is drawn in a resample


@dataclass(frozen=True)
class Cases:
    """The cases of one benchmark, each of a pictures and b captions."""

    benchmark: str  # prefix of the metrics' keys; ends in `_subset` if cases are missing
    cases: Sequence[Case]
    pictures: Photographs | None  # None for the images of the evaluated pairs, in their order
    judge: Judge  # computes the margins; a case is right if its margin is above 0
    metrics: tuple[Metric, ...]
    counts: Mapping[str, int] = field(default_factory=dict)  # further counts for `metrics.json`

    def __len__(self) -> int:
        return len(self.cases)

    @property
    def case_ids(self) -> list[str]:
        """The (n,) names of the cases."""
        return [case.id for case in self.cases]

    @property
    def picture_ids(self) -> list[str]:
        """The (n,) pictures with which the cases are drawn."""
        return [case.picture_id for case in self.cases]

    @property
    def groups(self) -> list[str]:
        """The (n,) groups."""
        return [case.group for case in self.cases]

    @cached_property
    def captions(self) -> list[str]:
        """The distinct captions."""
        return list(dict.fromkeys(chain.from_iterable(case.captions for case in self.cases)))

    @cached_property
    def caption(self) -> np.ndarray:
        """The captions of each case as rows of `captions`, (n, b)."""
        rows = {text: row for row, text in enumerate(self.captions)}
        return np.array([[rows[text] for text in case.captions] for case in self.cases], np.int64)

    @cached_property
    def picture(self) -> np.ndarray:
        """The pictures of each case as rows of `pictures`, (n, a)."""
        return np.array([case.pictures for case in self.cases], np.int64)

    @property
    def fingerprint(self) -> str:
        """Digest of the cases. It covers the order of the pictures, but not their pixels."""
        rows = (self.picture.tolist(), self.caption.tolist())
        return digest([self.benchmark, self.captions, self.case_ids, self.picture_ids, self.groups, *rows])


def first_is_right(scores: np.ndarray) -> dict[str, np.ndarray]:
    """Return the margin of the first caption, the true one, over the best of the others; for one picture per case."""
    return {"accuracy": scores[:, 0, 0] - scores[:, 0, 1:].max(1)}


def both_are_right(scores: np.ndarray) -> dict[str, np.ndarray]:
    """Return the margin of the lower of two true captions over the third; for one picture per case."""
    return {"accuracy": scores[:, 0, :2].min(1) - scores[:, 0, 2]}


def micro_and_macro(groups: Sequence[str]) -> tuple[Metric, ...]:
    """Return each group's accuracy, their mean, and that of all cases."""
    of_groups = tuple(Metric(group, "accuracy", (group,)) for group in groups)
    return (*of_groups, macro("macro", groups), Metric("micro", "accuracy"))


def macro(name: str, groups: Sequence[str]) -> Metric:
    """Return the unweighted mean of the groups' accuracies."""
    return Metric(name, "accuracy", tuple(groups), (1 / len(groups),) * len(groups))
