"""Rank every caption for every image and every image for every caption: exact, in one pass, in little memory.

In:  unit vectors of images and captions, and which captions answer which images.
Out: for each query of both directions its best-scored positive with its rank, and the best non-positives with theirs.

Mining and evaluation both stand on `rank_both_ways`, so a failure and a miss cannot disagree. What makes ranks well
defined:

- A score is a cosine, summed in float64 and rounded to float32, as `scores` has it. It does not depend on how the matrix
  is cut into blocks, and equal vectors have equal scores.
- The full ranking is in order of score; of equal scores, non-positives stand before positives (a tie counts against
  us: a model that gives everything the same score ranks last), and within each kind the lower index comes first.
- Ranks count from 1 in the full ranking, positives included.

Each block of the N x M matrix is computed once, quickly, and what matters of it is scored exactly (`screening`); what is
kept is O((N + M) k). Panels of captions go to as many threads as torch would use, each of which computes on its own.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from tqdm.auto import tqdm

from repair_hf.options import UserError
from repair_hf.rankings import Positives, Ranking, Side
from repair_hf.scores import CELLS, best_directly, exact_scores, keys_of, screen_error
from repair_hf.screening import Found, Pairs, Panel, Seeking, rank_in_part

logger = logging.getLogger(__name__)

BLOCK = 2048  # captions of a panel; half as many images of a block of scores, which is 8 MB
RUN = 16  # captions of a panel that lie side by side: a memory-mapped file is read in pieces of this size


def rank_both_ways(
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    positives: Positives,
    *,
    fps_of_image: int = 0,
    fps_of_caption: int = 0,
    block: int = BLOCK,
    dtype: torch.dtype | None = None,
) -> tuple[Ranking, Ranking]:
    """Rank captions for each image, and images for each caption, by one pass over the blocks of their scores.

    Args:
        image_embeddings: Unit vectors, float32; may be memory-mapped.
        text_embeddings: Unit vectors, float32; may be memory-mapped, and is then read a panel at a time.
        positives: Which captions answer which images.
        fps_of_image: How many false positives to find for each image.
        fps_of_caption: The same for each caption.
        block: How many captions are held against all images at once.
        dtype: In which blocks are screened: bfloat16 where the processor multiplies it by itself, else float32. The
            result is the same.

    Shape:
        image_embeddings: (N, D); text_embeddings: (M, D).

    Returns:
        The rankings of the N images' captions and of the M captions' images.
    """
    images, texts = np.asarray(image_embeddings, np.float32), np.asarray(text_embeddings, np.float32)
    with _workers() as (workers, n_workers), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")  # a mapped file; nothing is written to it
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        one_pass = _Pass(images, texts, positives, fps_of_image, fps_of_caption, block, dtype or screen_dtype())
        one_pass.score_positives(workers)
        one_pass.look_at_panels(workers, n_workers)
        one_pass.rank_lost(workers, n_workers)
        return one_pass.rankings(workers)


class _Pass:
    """What is known while the panels go by."""

    def __init__(
        self,
        images: np.ndarray,
        texts: np.ndarray,
        positives: Positives,
        k_image: int,
        k_caption: int,
        block: int,
        dtype: torch.dtype,
    ) -> None:
        self.images, self.texts, self.positives = images, texts, positives
        self.i2t, self.t2i = Side(len(images), k_image), Side(len(texts), k_caption)
        self.panels = _panels(len(texts), block)
        self.positive_scores: list[np.ndarray] = []  # of each panel, in order of image
        self.rows, self.dtype = math.ceil(block / 2), dtype
        self.eps = screen_error(images, texts, dtype)
        self.image_tensor = torch.from_numpy(images)

    def score_positives(self, workers: Executor) -> None:
        """Find each query's best positive."""
        places = range(len(self.panels))
        self.positive_scores = list(workers.map(self._exact_positives, places))
        for place in places:
            pairs, captions = self._positives(place), self.panels[place]
            self.i2t.offer_positives(pairs.image, captions[pairs.column], pairs.score)
            self.t2i.offer_positives(captions[pairs.column], pairs.image, pairs.score)

    def look_at_panels(self, workers: Executor, n_workers: int) -> None:
        """Hold all captions against all images, panel by panel; what is learnt of the images spares the later ones work."""
        i2t, t2i, done = self.i2t, self.t2i, 0
        seeking = Seeking(i2t.gt_score, self.eps)
        with tqdm(total=len(self.panels), desc="Ranking", unit=" panels", delay=3, disable=None) as bar:
            while done < len(self.panels):
                places = range(done, min(2 * done or n_workers, len(self.panels)))
                look, learnt = partial(self._look, seeking, not done), []
                for place, found in zip(places, workers.map(look, places), strict=True):
                    captions = self.panels[place]
                    i2t.non_positives_ahead += found.ahead_of_image
                    t2i.non_positives_ahead[captions] = found.ahead_of_caption
                    t2i.keys[captions], t2i.is_lost[captions] = found.keys, found.is_lost
                    i2t.keep(found.pairs.image, keys_of(found.pairs.score, captions[found.pairs.column]))
                    learnt.append(found.of_images)
                    bar.update()
                seeking, done = seeking if done else Seeking.merged(learnt), places.stop
                if i2t.k:
                    seeking.raise_to(i2t.kth_score(rank_in_part(i2t.k, done / len(self.panels))))
                    i2t.drop_below(seeking.least)
        i2t.settle()
        i2t.is_lost = seeking.lost(i2t.keys)

    def rank_lost(self, workers: Executor, n_workers: int) -> None:
        """Rank the queries whose best were not certain against everything."""
        for side, vectors, others in ((self.i2t, self.images, self.texts), (self.t2i, self.texts, self.images)):
            lost = np.flatnonzero(side.is_lost)
            at_once = max(1, min(CELLS // len(others), math.ceil(len(lost) / n_workers)))

            def rank(some: np.ndarray, side=side, vectors=vectors, others=others) -> None:
                known = self._positives_of_images(some) if side is self.i2t else self.positives.of_captions(some)[::-1]
                side.keys[some] = best_directly(vectors[some], others, known, side.k, self.eps)

            list(workers.map(rank, (lost[start : start + at_once] for start in range(0, len(lost), at_once))))

    def rankings(self, workers: Executor) -> tuple[Ranking, Ranking]:
        """Both directions', with the positives before each false positive counted in its rank."""

        def passed(place: int) -> tuple[np.ndarray, ...]:
            pairs = self._positives(place)
            captions = self.panels[place][pairs.column]
            return (
                pairs.image,
                self.i2t.ahead_of(pairs.image, pairs.score),
                captions,
                self.t2i.ahead_of(captions, pairs.score),
            )

        if self.i2t.k or self.t2i.k:
            for image, ahead_of_image, caption, ahead_of_caption in workers.map(passed, range(len(self.panels))):
                self.i2t.count_positives(image, ahead_of_image)
                self.t2i.count_positives(caption, ahead_of_caption)
        return self.i2t.ranking(), self.t2i.ranking()

    def _positives(self, place: int) -> Pairs:
        """Those of a panel, in order of image."""
        image, column = self.positives.of_captions(self.panels[place])
        order = np.argsort(image, kind="stable")
        score = self.positive_scores[place] if self.positive_scores else np.zeros(len(image), np.float32)
        return Pairs(image[order], column[order], score)

    def _exact_positives(self, place: int) -> np.ndarray:
        pairs = self._positives(place)
        captions = torch.from_numpy(self.texts[self.panels[place]].astype(np.float64))
        return exact_scores(self.images, pairs.image, captions, pairs.column)

    def _look(self, seeking: Seeking, is_first: bool, place: int) -> Found:
        captions = self.texts[self.panels[place]]
        panel = Panel(self.image_tensor, captions, len(self.texts), self._positives(place), self.rows, self.dtype)
        return panel.look(seeking, self.i2t.k, self.t2i.k, is_first=is_first)

    def _positives_of_images(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positive pairs of some images, as places in `images` and captions."""
        place_of = np.full(len(self.images), -1)
        place_of[images] = np.arange(len(images))
        found = []
        for captions in self.panels:
            image, column = self.positives.of_captions(captions)
            is_ours = place_of[image] >= 0
            found.append((place_of[image[is_ours]], captions[column[is_ours]]))
        return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def check_embeddings(image_embeddings: np.ndarray, text_embeddings: np.ndarray, caption_image: np.ndarray) -> None:
    """Refuse what could only give meaningless ranks.

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
            raise UserError(
                f"{bad.sum()} of {len(bad)} {name} embeddings are zero or not finite, first row {bad.argmax()}; they cannot be ranked."
            )
        if (off := np.abs(squares - 1) > 1e-2).any():
            logger.warning(
                "%d of %d %s embeddings are not of unit length, so scores are no cosines; divide each by its norm.",
                off.sum(),
                len(off),
                name,
            )
    if caption_image.shape != (len(texts),):
        raise UserError(
            f"`caption_image` must name the image of each of the {len(texts)} captions, got shape {caption_image.shape}."
        )
    if caption_image.min() < 0 or caption_image.max() >= len(images):
        raise UserError(
            f"`caption_image` must lie in [0, {len(images)}), got {caption_image.min()} to {caption_image.max()}."
        )
    if len(bare := np.setdiff1d(np.arange(len(images)), caption_image)):
        raise UserError(f"{len(bare)} of {len(images)} images have no caption, first image {bare[0]}; leave them out.")


def screen_dtype() -> torch.dtype:
    """bfloat16 where the processor multiplies it by itself, else float32."""
    return (
        torch.bfloat16
        if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        else torch.float32
    )


def _panels(n_texts: int, block: int) -> list[np.ndarray]:
    """Captions of each panel, in ascending order: runs from all over, so that each is a fair part of a sorted collection."""
    run, count = min(RUN, block), math.ceil(n_texts / block)
    starts = [np.arange(place * run, n_texts, count * run) for place in range(count)]
    panels = [(start[:, None] + np.arange(run)).ravel() for start in starts if len(start)]
    return [captions[captions < n_texts] for captions in panels]


@contextmanager
def _workers() -> Iterator[tuple[Executor, int]]:
    """As many threads as torch would use for one product; in each of them, torch uses one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as workers:
            yield workers, threads
    finally:
        torch.set_num_threads(threads)
