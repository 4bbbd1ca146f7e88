"""Mining beside the bare product of the same matrix, FAISS and sentence-transformers: how far is it from the limit?

In:  how many images and captions, how long their vectors are, how many false positives are sought.
Out: seconds, processor seconds and memory of each way, round by round.

Vectors are random, but that each caption lies near its image: most positives stand first, as a good retriever's do. All ways run in this
process and take turns, so that whatever else the machine does meets all of them. Memory is what the process grows by beyond the vectors,
looked at 100 times a second.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from datasets import Dataset

from repair_hf.measuring import Took, Vectors, timed
from repair_hf.mining.positives import Positives
from repair_hf.mining.ranking import rank_both_ways

ROWS = {
    "product": "the bare blocked float32 product, nothing looked at: the limit",
    "mine": "the k best false positives and all ranks, both ways, exact, in one pass",
    "mine 5/1": "the same of the 5 best captions of an image and the best image of a caption, as `repair-hf mine` does by default",
    "evaluate": "all ranks, both ways",
    "faiss": "IndexFlatIP, once for each direction: the k best, positives among them",
    "hard negatives": "mine_hard_negatives of sentence-transformers, once for each direction",
}
LIMIT = "product"
OTHERS = ("faiss", "hard negatives")
ROWS_OF_BLOCK, COLUMNS_OF_BLOCK = 1024, 2048


@dataclass(frozen=True)
class Load:
    """What is mined."""

    images: int
    texts: int
    dim: int
    k: int


def available(row: str) -> bool:
    """Whether what a row measures is installed."""
    return row != "hard negatives" or importlib.util.find_spec("sentence_transformers") is not None


def measure(load: Load, rows: list[str], repeat: int) -> Iterator[dict[str, Took]]:
    """Measure round by round.

    Args:
        load: What is mined.
        rows: Which ways, by their names.
        repeat: How many rounds.
    """
    vectors = Vectors.random(load.images, load.texts, load.dim)
    ways: dict[str, Callable[[Vectors, int], None]] = {
        "product": _product,
        "mine": _mine,
        "mine 5/1": _mine_default,
        "evaluate": _evaluate,
        "faiss": _faiss,
        "hard negatives": _hard_negatives,
    }
    for _ in range(repeat):
        yield {row: timed(partial(ways[row], vectors, load.k)) for row in rows if available(row)}


def _product(vectors: Vectors, k: int) -> None:
    images, texts = torch.from_numpy(vectors.images), torch.from_numpy(vectors.texts)
    held = torch.empty(ROWS_OF_BLOCK * COLUMNS_OF_BLOCK)
    for columns in texts.split(COLUMNS_OF_BLOCK):
        for rows in images.split(ROWS_OF_BLOCK):
            torch.mm(rows, columns.T, out=held[: len(rows) * len(columns)].view(len(rows), len(columns)))


def _mine(vectors: Vectors, k: int) -> None:
    positives = Positives.of(vectors.image_of, len(vectors.images))
    rank_both_ways(vectors.images, vectors.texts, positives, fps_of_image=k, fps_of_caption=k)


def _mine_default(vectors: Vectors, k: int) -> None:
    positives = Positives.of(vectors.image_of, len(vectors.images))
    rank_both_ways(vectors.images, vectors.texts, positives, fps_of_image=5, fps_of_caption=1)


def _evaluate(vectors: Vectors, k: int) -> None:
    rank_both_ways(vectors.images, vectors.texts, Positives.of(vectors.image_of, len(vectors.images)))


def _faiss(vectors: Vectors, k: int) -> None:
    import faiss

    for queries, candidates in ((vectors.images, vectors.texts), (vectors.texts, vectors.images)):
        index = faiss.IndexFlatIP(candidates.shape[1])
        index.add(candidates)
        index.search(queries, k)


def _hard_negatives(vectors: Vectors, k: int) -> None:
    from sentence_transformers.util import mine_hard_negatives

    image, caption = [f"i{place}" for place in vectors.image_of], [f"c{place}" for place in range(len(vectors.texts))]
    for anchor, positive in ((image, caption), (caption, image)):
        pairs = Dataset.from_dict({"anchor": anchor, "positive": positive})
        mine_hard_negatives(
            pairs, _LookUp(vectors), num_negatives=k, range_max=k, output_format="n-tuple", verbose=False
        )


class _LookUp:
    """In the place of a model of sentence-transformers: an item's name leads to its vector."""

    device = torch.device("cpu")

    def __init__(self, vectors: Vectors) -> None:
        self.tables = {"i": vectors.images, "c": vectors.texts}

    def encode_query(self, names: list[str], **options: object) -> np.ndarray:
        return self.tables[names[0][0]][[int(name[1:]) for name in names]]

    encode_document = encode_query

    def similarity(self, some: np.ndarray | torch.Tensor, others: np.ndarray | torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(some) @ torch.as_tensor(others).T

    def similarity_pairwise(self, some: np.ndarray, others: np.ndarray) -> torch.Tensor:
        return (torch.as_tensor(some) * torch.as_tensor(others)).sum(1)
