"""Images that answer the same captions: of equal pixels, near duplicates, and those of one group."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.images import equal_pixels

IMAGES_AT_ONCE = 1024  # compared with all others


def alike_images(
    pairs: Pairs, image_embeddings: np.ndarray, near_duplicates: float | None = None
) -> tuple[np.ndarray, dict[str, int]]:
    """Number images, so that those that answer the same captions share a number.

    Args:
        pairs: Their images of equal pixels are alike, and so are those of one of their groups.
        image_embeddings: Unit vectors, (N, D) float32.
        near_duplicates: Cosine from which two images are alike, also by way of others; None for no such images.

    Returns:
        The numbers, (N,); and for each reason how many images are alike to another.
    """
    kinds = {"equal_pixels": equal_pixels(pairs.images, pairs.looks)} if pairs.looks else {}
    if near_duplicates is not None:
        kinds["near_duplicates"] = near_numbers(image_embeddings, near_duplicates)
    if pairs.groups is not None:
        kinds["group"] = pairs.groups
    number = np.arange(len(pairs.images))
    for other in kinds.values():
        number = _joined(number, other)
    return number, {name: int((np.bincount(kind)[kind] > 1).sum()) for name, kind in kinds.items()}


def near_numbers(vectors: np.ndarray, least: float) -> np.ndarray:
    """Number unit vectors, (N, D): those that a chain of cosines of at least `least` connects share a number, (N,)."""
    number = items = np.arange(len(vectors))
    for start in range(0, len(vectors), IMAGES_AT_ONCE):
        one, other = np.nonzero(vectors[start : start + IMAGES_AT_ONCE] @ vectors[start:].T >= least)
        one, other = np.append(start + one, items), np.append(start + other, len(items) + number)
        number = _connected(one, other)[: len(items)]
    return number


def _joined(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Number items, (N,): those that share a number in either of two numberings share one."""
    return _connected(one, one.max() + 1 + other)[one]


def _connected(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Number the nodes of a graph with these edges, (E,), by the part that they belong to."""
    size = int(max(one.max(), other.max())) + 1
    edges = coo_array((np.ones(len(one), bool), (one, other)), shape=(size, size))
    return connected_components(edges, directed=False)[1]
