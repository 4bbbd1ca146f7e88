"""Rank every caption for every image and every image for every caption: exactly, in one pass, in little memory.

`rank_by_sorting` is the definition. `rank_both_ways` gives the same result for large data:

1. It multiplies blocks of vectors by fast products, whose error has a bound (`products`).
2. A pair whose score is further than this bound from what decides, the score of the best positive and the k-th best
   score so far, is counted or passed over at once.
3. The few pairs in between are scored again in float64 (`scores`).

A score is a cosine, summed in float64 and rounded to float32. Ties are ranked pessimistically: of equal scores,
non-positives come before positives, so a model that gives every pair the same score ranks last. Within each kind the
lower index comes first. Mining and evaluation both rank with this file, so they cannot disagree.

Beyond the vectors, which may be memory-mapped, the pass and its result take about 80 + 24 k bytes for each caption and
image (k: false positives wanted for it), and 60 MB for each thread.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch

from repair_hf.mining.panels import Panel, ScoreMatrix
from repair_hf.mining.products import choose_product, multiplying
from repair_hf.mining.queries import Queries, Ranking
from repair_hf.mining.scores import quietly
from repair_hf.pairs.truth import Truth
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes
from repair_hf.runtime.progress import Progress

logger = logging.getLogger(__name__)

PANEL = (256, 2048)  # least and most captions of a panel
MOST_ON_GPU = 8192  # captions of a panel
PANELS = 16  # of each process, if they are not too small
CELLS = {"cpu": 1 << 21, "cuda": 1 << 25}  # scores of a panel and a block: 8 MB a thread, and 128 MB


def rank_by_sorting(scores: np.ndarray, is_positive: np.ndarray, k: int) -> Ranking:
    """Rank the candidates of each query by sorting all of its scores: what `rank_both_ways` must equal.

    Shape:
        scores: (Q, C) float32, the exact scores. is_positive: (Q, C) bool; each query has one or more.
    """
    candidate = np.broadcast_to(np.arange(scores.shape[1]), scores.shape)
    order = np.lexsort((candidate, is_positive, -scores), axis=1)  # of ties, non-positives first, then the lower index
    ranked_positive = np.take_along_axis(is_positive, order, axis=1)
    ranked_score = np.take_along_axis(scores, order, axis=1)

    gt_place = ranked_positive.argmax(axis=1)[:, None]
    gt, gt_score = (np.take_along_axis(table, gt_place, axis=1)[:, 0] for table in (order, ranked_score))

    fp_place = np.argsort(ranked_positive, axis=1, kind="stable")[:, :k]
    fp, fp_score = (np.take_along_axis(table, fp_place, axis=1) for table in (order, ranked_score))
    is_fp = ~np.take_along_axis(ranked_positive, fp_place, axis=1)  # there may be fewer than k
    fp, fp_score = np.where(is_fp, fp, -1), np.where(is_fp, fp_score, -np.inf)
    return Ranking(gt, gt_score, 1 + gt_place[:, 0], fp, fp_score, 1 + fp_place)


@quietly()
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

    The captions are cut into panels, which go to as many threads as torch would use. Each process of a launcher takes
    its share of the panels, and then gets what the others found.

    Args:
        image_embeddings: Unit vectors, (N, D) float32; may be memory-mapped.
        text_embeddings: Unit vectors, (M, D) float32; may be memory-mapped, and is then read a panel at a time.
        positives: Which captions answer which images.
        fps_of_image: How many false positives to find for each image.
        fps_of_caption: How many false positives to find for each caption.
        block: How many captions are a panel; half as many images are a block. By default the scores of both take 8 MB
            at most, and 128 MB on a GPU.
        device: Where vectors are multiplied: the CPU, or a GPU of NVIDIA, which then holds all images' vectors.

    Returns:
        The rankings of the N images' captions and of the M captions' images.
    """
    images = np.ascontiguousarray(image_embeddings, np.float32)
    texts = np.ascontiguousarray(text_embeddings, np.float32)
    where = torch.device(device if torch.device(device).type == "cuda" else "cpu")  # products of known error
    size = _size_of_panel(len(texts), where) if block is None else (block, math.ceil(block / 2))
    matrix = ScoreMatrix(images, texts, positives, size, where)
    i2t, t2i = Queries(len(images), fps_of_image), Queries(len(texts), fps_of_caption)
    with _workers() as workers:
        positive_scores = _find_best_positives(matrix, i2t, t2i, workers)
        _rank_panels(matrix, i2t, t2i, workers)
        if fps_of_image or fps_of_caption:
            _count_positives(matrix, positive_scores, i2t, t2i, workers)
    return i2t.ranking(), t2i.ranking()


def rank_some(
    direction: str,
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    positives: Truth,
    queries: np.ndarray,
    *,
    fps: int,
    device: torch.device | str = "cpu",
) -> Ranking:
    """Rank all candidates for some queries of one direction, (Q,) rows; see `rank_both_ways`."""
    if direction == "i2t":
        positives = positives.select(queries, np.arange(len(text_embeddings)))
        images = image_embeddings[queries]
        return rank_both_ways(images, text_embeddings, positives, fps_of_image=fps, device=device)[0]
    positives = positives.select(np.arange(len(image_embeddings)), queries)
    texts = text_embeddings[queries]
    return rank_both_ways(image_embeddings, texts, positives, fps_of_caption=fps, device=device)[1]


def _find_best_positives(matrix: ScoreMatrix, i2t: Queries, t2i: Queries, workers: Executor) -> list[np.ndarray]:
    """Find each query's best positive; return the exact scores of each panel's positives."""

    def score(captions: np.ndarray) -> np.ndarray:
        image, place = matrix.positives.images_of(captions)
        return matrix.exact_scores(image, matrix.texts[captions], place)

    scores = list(workers.map(score, matrix.panels))
    for captions, panel_scores in zip(matrix.panels, scores, strict=True):
        image, place = matrix.positives.images_of(captions)
        i2t.offer_positives(image, captions[place], panel_scores)
        t2i.offer_positives(captions[place], image, panel_scores)
    return scores


def _rank_panels(matrix: ScoreMatrix, i2t: Queries, t2i: Queries, workers: Executor) -> None:
    """Count what is ahead of each query's best positive, and keep its best non-positives."""
    everyone = processes()
    own_panels = matrix.panels[everyone.index :: everyone.count]
    product = choose_product(matrix, i2t, t2i)

    def rank(captions: np.ndarray) -> None:
        Panel(matrix, captions, i2t, t2i, product.error).rank()

    title = "Ranking" if everyone.is_main else None
    with multiplying(product.precision):
        for _ in Progress(workers.map(rank, own_panels), title, total=len(own_panels), unit=" panels", delay=3):
            pass
    if everyone.count == 1:
        return
    captions = np.concatenate([*own_panels, np.zeros(0, np.int64)])
    parts = everyone.gather((i2t.keys, i2t.ahead, captions, t2i.keys[captions], t2i.ahead[captions]))
    all_keys = np.concatenate([keys for keys, *_ in parts], axis=1)
    i2t.keys = np.sort(all_keys, axis=1)[:, ::-1][:, : i2t.k]
    i2t.ahead = np.sum([ahead for _, ahead, *_ in parts], axis=0)
    for *_, captions, keys, ahead in parts:
        t2i.keys[captions], t2i.ahead[captions] = keys, ahead


def _count_positives(
    matrix: ScoreMatrix, scores: list[np.ndarray], i2t: Queries, t2i: Queries, workers: Executor
) -> None:
    """Count the positives ahead of each false positive: its rank is that among all candidates."""

    def count(captions: np.ndarray, panel_scores: np.ndarray) -> None:
        image, place = matrix.positives.images_of(captions)
        i2t.count_positives(image, panel_scores)
        t2i.count_positives(captions[place], panel_scores)

    list(workers.map(count, matrix.panels, scores))


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
        bad = ~(np.isfinite(squares) & (squares > 0))
        if bad.any():
            raise UserError(
                f"{bad.sum()} of {len(bad)} {name} embeddings are zero or not finite, first row {bad.argmax()}."
            )
        off = np.abs(squares - 1) > 1e-2
        if off.any():
            count = f"{off.sum()} of {len(off)} {name} embeddings"
            logger.warning("%s are not of unit length, so scores are no cosines; divide each by its norm.", count)
    if caption_image.shape != (len(texts),):
        raise UserError(
            f"`caption_image` must name the image of each of the {len(texts)} captions, got shape "
            f"{caption_image.shape}."
        )
    if caption_image.min() < 0 or caption_image.max() >= len(images):
        raise UserError(
            f"`caption_image` must lie in [0, {len(images)}), got {caption_image.min()} to {caption_image.max()}."
        )
    bare = np.setdiff1d(np.arange(len(images)), caption_image)
    if len(bare):
        raise UserError(f"{len(bare)} of {len(images)} images have no caption, first image {bare[0]}; leave them out.")


def _size_of_panel(n_captions: int, device: torch.device) -> tuple[int, int]:
    """Return how many captions a panel has, and how many images a block, the same in all processes."""
    least, most = PANEL
    if device.type == "cuda":
        most = MOST_ON_GPU
    captions = min(most, max(least, math.ceil(n_captions / (PANELS * processes().count))), n_captions)
    return captions, CELLS[device.type] // captions


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
