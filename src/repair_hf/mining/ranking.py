"""Rank every caption for every image and every image for every caption: exactly, in one pass, in little memory.

Mining and evaluation both rank with this file, so they cannot disagree. Ranks are well defined:

- A score is a cosine, summed in float64 and rounded to float32; see `scores`. It does not depend on how the matrix is
  cut into blocks, and equal vectors have equal scores.
- The full ranking is in order of score. Ties are ranked pessimistically: of equal scores, non-positives come before
  positives, so a model that gives every pair the same score ranks last. Within each kind the lower index comes first.
- Ranks count from 1 in the full ranking, positives included.

The captions are cut into panels. Each panel is a strided sample, so it is a fair part of a sorted collection, and so
is each process's share of the panels. A panel's scores are computed once, by fast products, and those that matter are
computed again exactly (`panels`). Panels go to as many threads as torch would use, and each thread computes on its
own. Each process adds its own panels; then they are merged.

Beyond the vectors, which may be memory-mapped, the pass and its result take about 80 + 24 k bytes for each caption and
image (k: false positives wanted for it), and 60 MB for each thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch

from repair_hf.mining.panels import Matrix, screen
from repair_hf.mining.queries import Queries, Ranking
from repair_hf.mining.scores import exact_scores, keys_of, quietly
from repair_hf.pairs.truth import Truth, expanded
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes

logger = logging.getLogger(__name__)

PANEL = (256, 2048)  # least and most captions of a panel
MOST_ON_GPU = 8192  # captions of a panel: 128 MB of scores a thread
PANELS = 16  # of each process, if they are not too small
PAIRS_AT_ONCE = 8192  # ranked together by `rank_pairs`
CAPTIONS_AT_ONCE = 1 << 16  # whose positives are looked up together


def rank_both_ways(
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    positives: Truth,
    *,
    fps_of_image: int = 0,
    fps_of_caption: int = 0,
    block: int | None = None,
    device: torch.device | str = "cpu",
) -> tuple[Ranking, Ranking]:
    """Rank captions for each image, and images for each caption, in one pass over the blocks of their scores.

    Args:
        image_embeddings: Unit vectors, (N, D) float32; may be memory-mapped.
        text_embeddings: Unit vectors, (M, D) float32; may be memory-mapped, and is then read a panel at a time.
        positives: Which captions answer which images.
        fps_of_image: How many false positives to find for each image.
        fps_of_caption: How many false positives to find for each caption.
        block: How many captions are screened against all images at once; half as many images are a block of scores,
            which takes 8 MB at most by default, and 128 MB on a GPU.
        device: Where blocks are screened: a GPU of NVIDIA, which then holds all images' vectors, or the CPU. Scores
            stay on the GPU; the pairs that may be among the best leave it. Exact scores and the result are the CPU's.

    Returns:
        The rankings of the N images' captions and of the M captions' images.
    """
    images, texts = (np.ascontiguousarray(some, np.float32) for some in (image_embeddings, text_embeddings))
    i2t, t2i = Queries(len(images), fps_of_image), Queries(len(texts), fps_of_caption)
    matrix = Matrix(images, texts, positives.images_of, block or _panel(len(texts), device))
    _rank(matrix, i2t, t2i, device)
    return i2t.ranking(), t2i.ranking()


def rank_some(
    direction: str,
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    positives: Truth,
    queries: np.ndarray,
    *,
    fps: int,
    block: int | None = None,
    device: torch.device | str = "cpu",
) -> Ranking:
    """Rank all candidates for some queries of one direction, (Q,) ascending rows; see `rank_both_ways`."""
    vectors, candidates = sides(direction, image_embeddings, text_embeddings)
    found = Queries(len(queries), fps)
    known = positives_of(direction, positives, queries)
    block = block or _panel(len(candidates), device)
    matrix = Matrix(vectors[queries], np.ascontiguousarray(candidates, np.float32), _by_candidate(*known), block)
    _rank(matrix, found, None, device)
    return found.ranking()


@quietly()
def rank_pairs(
    direction: str,
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    positives: Truth,
    q: np.ndarray,
    candidate: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and full ranks of non-positives, (P,) each, for queries `q`, (P,) int64 rows."""
    vectors, candidates = sides(direction, image_embeddings, text_embeddings)
    scores, rank = np.empty(len(q), np.float32), np.empty(len(q), np.int64)
    for start in range(0, len(q), PAIRS_AT_ONCE):
        some = slice(start, start + PAIRS_AT_ONCE)
        rows, found, own = vectors[q[some]], Queries(len(q[some]), 0), candidate[some]
        place, positive = positives_of(direction, positives, q[some])
        scores[some] = score = exact_scores(candidates, own, rows, np.arange(len(rows)))
        found.target = keys_of(score, own)
        _screen(Matrix(rows, candidates, _by_candidate(place, positive), _panel(len(candidates))), found, None)
        is_ahead = exact_scores(candidates, positive, rows, place) > score[place]  # a tie is behind
        rank[some] = 1 + found.ahead + np.bincount(place[is_ahead], minlength=len(rows))
    return scores, rank


def positives_of(direction: str, positives: Truth, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all positive pairs of some queries, (Q,), as places in `queries` and candidates, in any order."""
    if direction == "t2i":
        return positives.images_of(queries)[::-1]
    order = np.argsort(queries, kind="stable")
    places, captions = [], []
    for image, caption in all_pairs(positives):
        at, pair = expanded(*(np.searchsorted(queries[order], image, side=side) for side in ("left", "right")))
        places.append(order[at])
        captions.append(caption[pair])
    return np.concatenate(places), np.concatenate(captions)


def all_pairs(positives: Truth) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield all positive pairs of an image and a caption, those of some captions at a time."""
    for start in range(0, len(positives.wording), CAPTIONS_AT_ONCE):
        image, place = positives.images_of(np.arange(start, min(start + CAPTIONS_AT_ONCE, len(positives.wording))))
        yield image, start + place


def check_embeddings(image_embeddings: np.ndarray, text_embeddings: np.ndarray, caption_image: np.ndarray) -> None:
    """Check that ranks of these vectors would mean something.

    Raises:
        UserError: If shapes do not fit, a vector is zero or not finite, or an image has no caption.
    """
    images, texts = image_embeddings, text_embeddings
    if images.ndim != 2 or texts.ndim != 2 or images.shape[1] != texts.shape[1] or not len(images) or not len(texts):
        raise UserError(
            f"Embeddings must be (N, D) and (M, D) with the same D and no zero, got {images.shape} and {texts.shape}."
        )
    for name, vectors in (("image", images), ("text", texts)):
        squares = np.einsum("nd,nd->n", vectors, vectors)  # (n,)
        if (bad := ~(np.isfinite(squares) & (squares > 0))).any():
            first = f"first row {bad.argmax()}"
            raise UserError(f"{bad.sum()} of {len(bad)} {name} embeddings are zero or not finite, {first}.")
        if (off := np.abs(squares - 1) > 1e-2).any():
            which = f"{off.sum()} of {len(off)} {name} embeddings"
            logger.warning("%s are not of unit length, so scores are no cosines; divide each by its norm.", which)
    if caption_image.shape != (len(texts),):
        expected = f"the image of each of the {len(texts)} captions"
        raise UserError(f"`caption_image` must name {expected}, got shape {caption_image.shape}.")
    if caption_image.min() < 0 or caption_image.max() >= len(images):
        raise UserError(
            f"`caption_image` must lie in [0, {len(images)}), got {caption_image.min()} to {caption_image.max()}."
        )
    if len(bare := np.setdiff1d(np.arange(len(images)), caption_image)):
        raise UserError(f"{len(bare)} of {len(images)} images have no caption, first image {bare[0]}; leave them out.")


def sides(direction: str, images: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of the queries and of the candidates."""
    return (texts, images) if direction == "t2i" else (images, texts)


def _panel(n_columns: int, device: torch.device | str = "cpu") -> int:
    """Return how many columns a panel has, the same in all processes."""
    least, most = PANEL
    if torch.device(device).type == "cuda":
        most = MOST_ON_GPU
    return min(most, max(least, math.ceil(n_columns / (PANELS * processes().count))))


def _by_candidate(place: np.ndarray, candidate: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return a function from candidates, (C,), to positive pairs as places of queries and places in the candidates."""
    order = np.argsort(candidate, kind="stable")
    place, candidate = place[order], candidate[order]

    def pairs(some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        at, column = expanded(*(np.searchsorted(candidate, some, side=side) for side in ("left", "right")))
        return place[at], column

    return pairs


@quietly()
def _rank(matrix: Matrix, rows: Queries, columns: Queries | None, device: torch.device | str) -> None:
    """Find each query's best positive, what is ahead of it, its best non-positives, and the positives among these."""

    def score(panel: np.ndarray) -> np.ndarray:
        row, place = matrix.positives_of(panel)
        return exact_scores(matrix.rows, row, matrix.columns[panel], place)

    def count(panel: np.ndarray, scores: np.ndarray) -> None:
        row, place = matrix.positives_of(panel)
        rows.count_positives(row, scores)
        if columns is not None:
            columns.count_positives(panel[place], scores)

    with _workers() as workers:
        scores = list(workers.map(score, matrix.panels))
    for panel, found in zip(matrix.panels, scores, strict=True):
        row, place = matrix.positives_of(panel)
        rows.offer_positives(row, panel[place], found)
        if columns is not None:
            columns.offer_positives(panel[place], row, found)
    _screen(matrix, rows, columns, device)
    if rows.k or (columns is not None and columns.k):
        with _workers() as workers:
            list(workers.map(count, matrix.panels, scores))


def _screen(
    matrix: Matrix,
    rows: Queries,
    columns: Queries | None,
    device: torch.device | str = "cpu",
) -> None:
    """Screen this process's panels, and merge what the processes found. Without columns, only rows are ranked."""
    panels, everyone = matrix.panels, processes()
    columns = Queries(len(matrix.columns), 0) if columns is None else columns
    own = panels[everyone.index :: everyone.count]
    with _workers() as workers, _full_float32():
        where = torch.device(device if torch.device(device).type == "cuda" else "cpu")  # of known error
        screen(matrix, own, rows, columns, workers, where, show=everyone.is_main)
    if everyone.count == 1:
        return
    which = np.concatenate([*own, np.zeros(0, np.int64)])
    parts = everyone.gather((rows.keys, rows.ahead, which, columns.keys[which], columns.ahead[which]))
    rows.keys = np.sort(np.concatenate([keys for keys, *_ in parts], axis=1), axis=1)[:, ::-1][:, : rows.k]
    rows.ahead = np.sum([ahead for _, ahead, *_ in parts], axis=0)
    for *_, which, keys, ahead in parts:
        columns.keys[which], columns.ahead[which] = keys, ahead


@contextmanager
def _workers() -> Iterator[Executor]:
    """Start as many threads as torch would use for one product; each of them uses one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield workers
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _full_float32() -> Iterator[None]:
    """Switch off TF32, which a training run may have switched on: it exceeds the error bound of the screen."""
    if not hasattr(torch.backends, "fp32_precision"):  # before torch 2.9
        found = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(found)
        return
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
