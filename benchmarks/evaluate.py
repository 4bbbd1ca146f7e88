"""Time retrieval evaluation beside CLIP_benchmark's own function, on the same vectors in the same process.

    python benchmarks/evaluate.py             # 1,000 images x 5,000 captions
    python benchmarks/evaluate.py --paper     # COCO's test split: 5,000 x 25,000

The row of CLIP_benchmark needs the package `clip-benchmark`, which `make crosscheck` installs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch
from common import SMALL, Timing, Vectors, measure, parser, print_notes, print_table

from repair_hf.evaluation.intervals import Draws, interval
from repair_hf.evaluation.retrieval import KS, rank_queries, resample_retrieval, retrieval_metrics

REFERENCE = "CLIP_benchmark"
NOTES = {
    "ours": "R@1/5/10, MRR and median rank of both directions, with 95% intervals",
    "ours, no intervals": "the same metrics alone",
    REFERENCE: "R@1/5/10 of both directions, by its own function",
}
BATCH = 64  # images that CLIP_benchmark's command takes at once
DIRECTIONS = {"text_retrieval": "i2t", "image_retrieval": "t2i"}  # its names are of what is found


def main() -> None:
    """Print time, memory, and the largest difference of a Recall@K from CLIP_benchmark's."""
    options = parser("Time retrieval evaluation.")
    options.add_argument("--images", type=int, default=1000)
    options.add_argument("--texts", type=int, default=5000)
    options.add_argument("--paper", action="store_true", help="5,000 images x 25,000 captions")
    options.add_argument("--dim", type=int, default=512, help="length of a vector")
    options.add_argument("--resamples", type=int, default=2000, help="bootstrap resamples for the intervals")
    args = options.parse_args()
    vectors = Vectors.random(*(SMALL if args.paper else (args.images, args.texts)), args.dim)
    ways: dict[str, Callable[[], dict[str, float]]] = {
        "ours": partial(_ours, vectors, args.resamples),
        "ours, no intervals": partial(_ours, vectors, 0),
    }
    if importlib.util.find_spec("clip_benchmark") is not None:
        ways[REFERENCE] = partial(_clip_benchmark, vectors)
    rounds = [{row: measure(way) for row, way in ways.items()} for _ in range(args.repeat)]
    metrics = {row: way() for row, way in ways.items()}
    print(f"{len(vectors.images):,} images x {len(vectors.texts):,} captions")
    print_table(("", "seconds", "ratio", "memory", "difference"), [_cells(row, rounds, metrics) for row in ways])
    print_notes(
        NOTES, ways, f"{args.dim} numbers a vector, {args.resamples:,} resamples, {torch.get_num_threads()} threads;"
    )
    print(f"ratio: to {REFERENCE}, median of {args.repeat} rounds; difference: the largest of a Recall@K")


def _cells(row: str, rounds: list[dict[str, Timing]], metrics: dict[str, dict[str, float]]) -> tuple[str, ...]:
    ratio = apart = "-"
    if REFERENCE in metrics:
        ratio = f"{median(one[row].seconds / one[REFERENCE].seconds for one in rounds):.2f}"
        theirs = metrics[REFERENCE]
        apart = f"{max(abs(value - metrics[row][name]) for name, value in theirs.items()):.1e}"
    memory = max(one[row].memory for one in rounds) / 2**20
    return row, f"{median(one[row].seconds for one in rounds):.2f}", ratio, f"{memory:,.0f} MiB", apart


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
        _Lookup(vectors), batches(), torch.tensor, "cpu", amp=False, recall_k_list=list(KS)
    )
    named = (name.split("_recall@") for name in found)
    return {f"{DIRECTIONS[side]}_R@{k}": value for (side, k), value in zip(named, found.values(), strict=True)}


class _Lookup:
    """Stand in for a model: an image is its vector, a caption the index of its vector."""

    def __init__(self, vectors: Vectors) -> None:
        self.texts = torch.from_numpy(vectors.texts)

    def encode_image(self, vectors: torch.Tensor) -> torch.Tensor:
        return vectors

    def encode_text(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.texts[numbers]


if __name__ == "__main__":
    main()
