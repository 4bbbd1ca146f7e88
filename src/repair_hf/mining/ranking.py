"""Rank every caption for every image and every image for every caption: exactly, in one pass, in little memory.

Mining and evaluation both use `rank_both_ways`, so they cannot disagree. Ranks are well defined:

- A score is a cosine, summed in float64 and rounded to float32; see `scores`. It does not depend on how the matrix is
  cut into blocks, and equal vectors have equal scores.
- The full ranking is in order of score. Ties are ranked pessimistically: of equal scores, non-positives come before
  positives, so a model that gives every pair the same score ranks last. Within each kind the lower index comes first.
- Ranks count from 1 in the full ranking, positives included.

The captions are cut into panels. Each panel is a strided sample, so it is a fair part of a sorted collection, and so
is each process's share of the panels. A panel's scores are computed once, by fast products, and those that matter are
computed again exactly (`screening`). Panels go to as many threads as torch would use, and each thread computes on its
own. A process finds the k best images of its own captions, and of each image's k best captions those among its own;
then they are merged.

Beyond the vectors, which may be memory-mapped, the pass and its result take about 70 + 44 k bytes for each caption and
image (k: false positives wanted for it), 60 MB for each thread, and 24 bytes for each candidate for an image's k best:
about 3 k candidates for each image, and 20 for k = 1. So 10 million captions whose best image is wanted take 1.1 GB.
Images that fit into 256 MB in float64 are also held in float64.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from tqdm.auto import tqdm

from repair_hf.mining.cutoffs import Cutoffs, rank_in_part
from repair_hf.mining.ranking_state import Ranking, RankingState
from repair_hf.mining.scores import best_directly, exact_scores, keys_of, quietly, screen_error
from repair_hf.mining.screening import PanelRanks, ScoredPairs, ScoreMatrix, screen_panel
from repair_hf.pairs.truth import Truth
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import Processes

logger = logging.getLogger(__name__)

BLOCK = 2048  # captions of a panel; half as many images of a block of scores, which is 8 MB
RUN = 16  # neighbouring captions of a panel: a memory-mapped file is read in pieces of this size
FLOAT64_BYTES = 2**28  # the images are held in float64 up to this size
QUERIES_DIRECTLY = 256  # ranked directly at once


def rank_both_ways(
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    positives: Truth,
    *,
    fps_of_image: int = 0,
    fps_of_caption: int = 0,
    block: int = BLOCK,
    device: torch.device | str = "cpu",
    everyone: Processes | None = None,
) -> tuple[Ranking, Ranking]:
    """Rank captions for each image, and images for each caption, in one pass over the blocks of their scores.

    Args:
        image_embeddings: Unit vectors, (N, D) float32; may be memory-mapped.
        text_embeddings: Unit vectors, (M, D) float32; may be memory-mapped, and is then read a panel at a time.
        positives: Which captions answer which images.
        fps_of_image: How many false positives to find for each image.
        fps_of_caption: How many false positives to find for each caption.
        block: How many captions are screened against all images at once.
        device: Where blocks are screened. An accelerator holds all images' vectors; selection, exact scores and the
            result stay on the CPU.
        everyone: The processes that share the captions; each must call this with the same vectors, and gets the whole
            result.

    Returns:
        The rankings of the N images' captions and of the M captions' images.
    """
    images, texts = np.asarray(image_embeddings, np.float32), np.asarray(text_embeddings, np.float32)
    i2t, t2i = RankingState(len(images), fps_of_image), RankingState(len(texts), fps_of_caption)
    with _workers() as (workers, n_workers), _full_float32(), quietly():
        matrix = _cut(images, texts, positives, block, torch.device(device), everyone)
        scores = _score_positives(matrix, i2t, t2i, workers)
        _screen_panels(matrix, scores, i2t, t2i, workers, n_workers, everyone)
        _rank_directly(matrix, i2t, t2i, workers, n_workers)
        if everyone and everyone.count > 1:
            _merge(matrix, i2t, t2i, everyone)
        _count_positives(matrix, scores, i2t, t2i, workers)
        return i2t.ranking(), t2i.ranking()


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


def _cut(
    images: np.ndarray,
    texts: np.ndarray,
    positives: Truth,
    block: int,
    device: torch.device,
    everyone: Processes | None,
) -> ScoreMatrix:
    """Cut the scores into panels and blocks, and share out the panels."""
    if min(images.strides) < 0:  # torch does not accept negative strides
        images = images.copy()
    run, count = min(RUN, block), math.ceil(len(texts) / block)
    starts = [np.arange(place * run, len(texts), count * run) for place in range(count)]
    panels = [(start[:, None] + np.arange(run)).ravel() for start in starts if len(start)]
    panels = [captions[captions < len(texts)] for captions in panels]
    own = range(len(panels))
    dtype = screen_dtype(device)
    return ScoreMatrix(
        images=images,
        texts=texts,
        positives=positives,
        panels=panels,
        own=own[everyone.index :: everyone.count] if everyone else own,
        n_blocks=math.ceil(len(images) / math.ceil(block / 2)),
        eps=screen_error(images, texts, dtype),
        images64=torch.from_numpy(images).double() if 2 * images.nbytes <= FLOAT64_BYTES else images,
        screen_images=torch.from_numpy(images).to(device, dtype),  # float32 on the CPU: the same memory
    )


def screen_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 for a CPU that supports it natively, else float32. An accelerator's bfloat16 has no bound."""
    has_bfloat16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if device.type == "cpu" and has_bfloat16 else torch.float32


def _score_positives(matrix: ScoreMatrix, i2t: RankingState, t2i: RankingState, workers: Executor) -> list[np.ndarray]:
    """Find each query's best positive; return the scores of each panel's positives."""

    def score(place: int) -> np.ndarray:
        image, column = matrix.positives_of(place)
        captions64 = torch.from_numpy(matrix.texts[matrix.panels[place]].astype(np.float64))
        return exact_scores(matrix.images, image, captions64, column)

    scores = list(workers.map(score, range(len(matrix.panels))))
    for place, captions in enumerate(matrix.panels):
        image, column = matrix.positives_of(place)
        i2t.offer_positives(image, captions[column], scores[place])
        t2i.offer_positives(captions[column], image, scores[place])
    return scores


def _screen_panels(
    matrix: ScoreMatrix,
    scores: list[np.ndarray],
    i2t: RankingState,
    t2i: RankingState,
    workers: Executor,
    n_workers: int,
    everyone: Processes | None,
) -> None:
    """Find the best non-positives in this process's panels. What the first panels show spares the later ones work."""
    if not matrix.own:
        return
    of_images, n_captions, done = Cutoffs(i2t.gt_score, i2t.k, matrix.eps), len(matrix.own_captions), 0

    def screen(place: int) -> PanelRanks:
        positives = ScoredPairs(*matrix.positives_of(place), scores[place])
        if done:
            return screen_panel(matrix, place, positives, of_images, t2i.k)
        guessed, share = Cutoffs(i2t.gt_score, i2t.k, matrix.eps), len(matrix.panels[place]) / n_captions
        return screen_panel(matrix, place, positives, guessed, t2i.k, share=share)

    is_silent = True if everyone and not everyone.is_main else None
    with tqdm(total=len(matrix.own), desc="Ranking", unit=" panels", delay=3, disable=is_silent) as bar:
        while done < len(matrix.own):
            places = matrix.own[done : 2 * done or n_workers]
            guesses = []
            for place, found in zip(places, workers.map(screen, places), strict=True):
                captions = matrix.panels[place]
                i2t.non_positives_ahead += found.ahead_of_image
                t2i.non_positives_ahead[captions] = found.ahead_of_caption
                t2i.keys[captions], t2i.is_uncertain[captions] = found.keys, found.is_uncertain
                i2t.add_candidates(found.pairs.image, keys_of(found.pairs.score, captions[found.pairs.column]))
                guesses.append(found.of_images)
                bar.update()
            if not done:
                of_images = Cutoffs.merged(guesses)
            done += len(places)
            if i2t.k:
                of_images.raise_to(i2t.kth_score(rank_in_part(i2t.k, done / len(matrix.own))))
                i2t.drop_below(of_images.top_k)
    i2t.keep_best()
    i2t.is_uncertain = of_images.uncertain(i2t.keys)


def _rank_directly(
    matrix: ScoreMatrix, i2t: RankingState, t2i: RankingState, workers: Executor, n_workers: int
) -> None:
    """Rank the queries whose k best are uncertain against all candidates that this process screens."""
    sides = (
        (i2t, matrix.images, matrix.texts, matrix.own_captions, matrix.positives_of_images),
        (t2i, matrix.texts, matrix.images, np.arange(len(matrix.images)), matrix.positives_of_captions),
    )
    for state, vectors, candidates, among, positives_of in sides:
        uncertain = np.flatnonzero(state.is_uncertain)
        size = max(1, min(QUERIES_DIRECTLY, math.ceil(len(uncertain) / n_workers)))

        def rank(some, state=state, vectors=vectors, candidates=candidates, among=among, positives_of=positives_of):
            known = positives_of(some)
            state.keys[some] = best_directly(vectors[some], candidates, among, known, state.k, matrix.eps)

        list(workers.map(rank, (uncertain[start : start + size] for start in range(0, len(uncertain), size))))


def _merge(matrix: ScoreMatrix, i2t: RankingState, t2i: RankingState, everyone: Processes) -> None:
    """Merge what the processes found."""
    captions = matrix.own_captions
    of_captions = (captions, t2i.keys[captions], t2i.non_positives_ahead[captions])
    parts = everyone.gather((i2t.keys, i2t.non_positives_ahead, *of_captions))
    i2t.keys = np.sort(np.concatenate([keys for keys, *_ in parts], axis=1), axis=1)[:, ::-1][:, : i2t.k]
    i2t.non_positives_ahead = np.sum([ahead for _, ahead, *_ in parts], axis=0)
    for *_, captions, keys, ahead in parts:
        t2i.keys[captions], t2i.non_positives_ahead[captions] = keys, ahead


def _count_positives(
    matrix: ScoreMatrix, scores: list[np.ndarray], i2t: RankingState, t2i: RankingState, workers: Executor
) -> None:
    """Count the positives ahead of each false positive, for its rank."""
    if not i2t.k and not t2i.k:
        return

    def ahead_of(place: int) -> tuple[np.ndarray, ...]:
        image, column = matrix.positives_of(place)
        caption = matrix.panels[place][column]
        return image, i2t.fps_ahead(image, scores[place]), caption, t2i.fps_ahead(caption, scores[place])

    for image, ahead_of_image, caption, ahead_of_caption in workers.map(ahead_of, range(len(matrix.panels))):
        i2t.count_positives(image, ahead_of_image)
        t2i.count_positives(caption, ahead_of_caption)


@contextmanager
def _workers() -> Iterator[tuple[Executor, int]]:
    """Start as many threads as torch would use for one product; each of them uses one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield workers, threads
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
