"""Retrieval evaluation beside CLIP_benchmark's own code, of the same vectors in the same process.

In:  how many images and captions, how long their vectors are, how many resamples of the images.
Out: seconds, processor seconds and memory of each way, and its metrics, round by round.

CLIP_benchmark's function is called as its command calls it, with vectors in the place of a model's images and captions: what it takes is
its products, its matrix of positives and its top-k. It gives Recall@K alone, without intervals.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from repair_hf.evaluation.intervals import Draws, interval
from repair_hf.evaluation.retrieval import KS, rank_queries, resample_retrieval, retrieval_metrics
from repair_hf.measuring import Took, Vectors, timed

ROWS = {
    "ours": "R@1/5/10, MRR and median rank of both directions, with their 95% intervals",
    "ours, no intervals": "the same metrics alone",
    "CLIP_benchmark": "R@1/5/10 of both directions, by its own function",
}
REFERENCE = "CLIP_benchmark"
MISSING = "clip-benchmark is not installed here; `make crosscheck` says where it is, for it wants torchvision"
BATCH = 64  # images that CLIP_benchmark's command takes at once, and so rows whose top-k it looks at
DIRECTIONS = {"text_retrieval": "i2t", "image_retrieval": "t2i"}  # it names a direction by what is found


@dataclass(frozen=True)
class Load:
    """What is evaluated."""

    images: int
    texts: int
    dim: int
    resamples: int


@dataclass(frozen=True)
class Found:
    """What a way took, and its metrics by our names."""

    took: Took
    metrics: dict[str, float]

    def apart(self, other: Found) -> float:
        """The largest difference of a Recall@K."""
        both = [name for name in self.metrics if "R@" in name and name in other.metrics]
        return max(abs(self.metrics[name] - other.metrics[name]) for name in both)


def available(row: str) -> bool:
    """Whether what a row measures is installed."""
    return row != REFERENCE or importlib.util.find_spec("clip_benchmark") is not None


def measure(load: Load, rows: list[str], repeat: int) -> Iterator[dict[str, Found]]:
    """Measure round by round.

    Args:
        load: What is evaluated.
        rows: Which ways, by their names.
        repeat: How many rounds.
    """
    vectors = Vectors.random(load.images, load.texts, load.dim)
    ways: dict[str, Callable[[], dict[str, float]]] = {
        "ours": partial(_ours, vectors, load.resamples),
        "ours, no intervals": partial(_ours, vectors, 0),
        REFERENCE: partial(_clip_benchmark, vectors),
    }
    for _ in range(repeat):
        yield {row: _found(ways[row]) for row in rows if available(row)}


def _found(way: Callable[[], dict[str, float]]) -> Found:
    metrics: dict[str, float] = {}
    return Found(timed(lambda: metrics.update(way())), metrics)


def _ours(vectors: Vectors, resamples: int) -> dict[str, float]:
    rankings = rank_queries(vectors.images, vectors.texts, vectors.image_of)
    ranks = {direction: ranking.gt_rank for direction, ranking in rankings.items()}
    if resamples:
        samples = resample_retrieval(ranks, vectors.image_of, Draws(len(vectors.images), resamples))
        for values in samples.values():
            interval(values)
    return retrieval_metrics(ranks)


def _clip_benchmark(vectors: Vectors) -> dict[str, float]:
    from clip_benchmark.metrics import zeroshot_retrieval

    n_images = len(vectors.images)
    captions = [list(range(image, len(vectors.texts), n_images)) for image in range(n_images)]

    def batches() -> Iterator[tuple[torch.Tensor, list[list[int]]]]:
        for start in range(0, n_images, BATCH):
            yield torch.from_numpy(vectors.images[start : start + BATCH]), captions[start : start + BATCH]

    found = zeroshot_retrieval.evaluate(
        _LookUp(vectors), batches(), torch.tensor, "cpu", amp=False, recall_k_list=list(KS)
    )
    named = (name.split("_recall@") for name in found)
    return {f"{DIRECTIONS[side]}_R@{k}": value for (side, k), value in zip(named, found.values(), strict=True)}


class _LookUp:
    """In the place of a model: an image is its vector, a caption the number of its vector."""

    def __init__(self, vectors: Vectors) -> None:
        self.texts = torch.from_numpy(vectors.texts)

    def encode_image(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors

    def encode_text(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.texts[numbers]
