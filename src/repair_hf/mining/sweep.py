"""Hold all captions against all images once, panel by panel, and learn both directions' rankings from it.

In:  vectors, positives, how many false positives are sought for each query; threads, and processes that share the work.
Out: the best positive and the best false positives of each image and caption, with their ranks.

A panel is a strided sample of the captions, so each is a fair part of a sorted collection, and so is each process's share of
them. A process finds the best of its own captions whole; of an image's best it finds those among its captions. Then they meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial

import numpy as np
import torch
from tqdm.auto import tqdm

from repair_hf.mining.positives import Positives, Ranking, Side
from repair_hf.mining.scores import best_directly, exact_scores, keys_of, screen_error
from repair_hf.mining.screening import Found, Panel, ScoredPairs
from repair_hf.mining.seeking import Seeking, rank_in_part
from repair_hf.runtime.processes import Processes

RUN = 16  # captions of a panel that lie side by side: a memory-mapped file is read in pieces of this size
HELD = 2**28  # bytes of images in float64 that are held at most
LOST_AT_ONCE = 256  # queries that are ranked directly together


class OnePass:
    """What is known while the panels go by. Its methods are called once each, in the order in which they stand.

    Args:
        images: (N, D) float32.
        texts: (M, D) float32.
        positives: Which captions answer which images.
        k_image: How many false positives are sought for each image.
        k_caption: How many for each caption.
        block: Captions of a panel.
        dtype: In which blocks are screened.
        device: Where they are.
        everyone: The processes that share the panels; None is this one alone.
    """

    def __init__(
        self,
        images: np.ndarray,
        texts: np.ndarray,
        positives: Positives,
        *,
        k_image: int,
        k_caption: int,
        block: int,
        dtype: torch.dtype,
        device: torch.device,
        everyone: Processes | None = None,
    ) -> None:
        if min(images.strides) < 0:  # torch does not take what runs backwards
            images = images.copy()
        self.images, self.texts, self.positives, self.everyone = images, texts, positives, everyone
        self.i2t, self.t2i = Side(len(images), k_image), Side(len(texts), k_caption)
        self.panels = _panels(len(texts), block)
        self.own = range(len(self.panels))  # places of the panels that this process looks at
        if everyone:
            self.own = self.own[everyone.index :: everyone.count]
        self.n_own_captions = sum(len(self.panels[place]) for place in self.own)
        self.positive_scores: list[np.ndarray] = []  # of each panel, in order of image
        self.rows = math.ceil(block / 2)
        self.eps = screen_error(images, texts, dtype)
        self.held = torch.from_numpy(images).double() if 2 * images.nbytes <= HELD else images
        self.screened = torch.from_numpy(images).to(device, dtype)  # float32 on the processor: the very array

    def score_positives(self, workers: Executor) -> None:
        """Find each query's best positive."""
        places = range(len(self.panels))
        self.positive_scores = list(workers.map(self._exact_positives, places))
        for place in places:
            pairs, captions = self._positives(place), self.panels[place]
            self.i2t.offer_positives(pairs.image, captions[pairs.column], pairs.score)
            self.t2i.offer_positives(captions[pairs.column], pairs.image, pairs.score)

    def look_at_panels(self, workers: Executor, n_workers: int) -> None:
        """Hold the captions against all images, panel by panel; what is learnt of the images spares the later ones work."""
        if not self.own:
            return
        with tqdm(total=len(self.own), desc="Ranking", unit=" panels", delay=3, disable=self._is_silent()) as bar:
            look = partial(self._look, Seeking(self.i2t.gt_score, self.eps), is_first=True)
            done = min(n_workers, len(self.own))
            seeking = Seeking.merged(self._look_at(self.own[:done], look, workers, bar))
            self._raise(seeking, done)
            look = partial(self._look, seeking, is_first=False)
            while done < len(self.own):
                places = self.own[done : 2 * done]
                self._look_at(places, look, workers, bar)
                done += len(places)
                self._raise(seeking, done)
        self.i2t.settle()
        self.i2t.is_lost = seeking.lost(self.i2t.keys)

    def rank_lost(self, workers: Executor, n_workers: int) -> None:
        """Rank the queries whose best were not certain against everything that this process looks at."""
        sides = (
            (self.i2t, self.images, self.texts, self._own_captions, self._positives_of_images),
            (self.t2i, self.texts, self.images, np.arange(len(self.images)), self._positives_of_captions),
        )
        for side, vectors, others, among, positives_of in sides:
            lost = np.flatnonzero(side.is_lost)
            at_once = max(1, min(LOST_AT_ONCE, math.ceil(len(lost) / n_workers)))

            def rank(some: np.ndarray, side=side, vectors=vectors, others=others, among=among, known=positives_of):
                side.keys[some] = best_directly(vectors[some], others, among, known(some), side.k, self.eps)

            list(workers.map(rank, (lost[start : start + at_once] for start in range(0, len(lost), at_once))))

    def meet(self) -> None:
        """Put together what the processes found."""
        if self.everyone is None or self.everyone.count == 1:
            return
        captions = self._own_captions
        of_captions = (captions, self.t2i.keys[captions], self.t2i.non_positives_ahead[captions])
        said = self.everyone.gather((self.i2t.keys, self.i2t.non_positives_ahead, *of_captions))
        self.i2t.keys = np.sort(np.concatenate([keys for keys, *_ in said], axis=1), axis=1)[:, ::-1][:, : self.i2t.k]
        self.i2t.non_positives_ahead = sum(ahead for _, ahead, *_ in said)
        for *_, captions, keys, ahead in said:
            self.t2i.keys[captions], self.t2i.non_positives_ahead[captions] = keys, ahead

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

    def _is_silent(self) -> bool | None:
        return True if self.everyone and not self.everyone.is_main else None

    def _positives(self, place: int) -> ScoredPairs:
        """Those of a panel, in order of image."""
        image, column = self.positives.of_captions(self.panels[place])
        order = np.argsort(image, kind="stable")
        score = self.positive_scores[place] if self.positive_scores else np.zeros(len(image), np.float32)
        return ScoredPairs(image[order], column[order], score)

    def _exact_positives(self, place: int) -> np.ndarray:
        pairs = self._positives(place)
        captions = torch.from_numpy(self.texts[self.panels[place]].astype(np.float64))
        return exact_scores(self.images, pairs.image, captions, pairs.column)

    def _look_at(
        self, places: Sequence[int], look: Callable[[int], Found], workers: Executor, bar: tqdm
    ) -> list[Seeking]:
        """Keep what some panels tell of captions and images; and, of each panel, what the images now look for."""
        learnt = []
        for place, found in zip(places, workers.map(look, places), strict=True):
            captions = self.panels[place]
            self.i2t.non_positives_ahead += found.ahead_of_image
            self.t2i.non_positives_ahead[captions] = found.ahead_of_caption
            self.t2i.keys[captions], self.t2i.is_lost[captions] = found.keys, found.is_lost
            self.i2t.keep(found.pairs.image, keys_of(found.pairs.score, captions[found.pairs.column]))
            learnt.append(found.of_images)
            bar.update()
        return learnt

    def _raise(self, seeking: Seeking, done: int) -> None:
        """After so many panels, look for less: what the pool already holds better captions than."""
        if self.i2t.k:
            seeking.raise_to(self.i2t.kth_score(rank_in_part(self.i2t.k, done / len(self.own))))
            self.i2t.drop_below(seeking.least)

    def _look(self, seeking: Seeking, place: int, *, is_first: bool) -> Found:
        captions = self.texts[self.panels[place]]
        share = len(captions) / self.n_own_captions
        panel = Panel(self.images, self.held, self.screened, captions, share, self._positives(place), self.rows)
        return panel.look(seeking, self.i2t.k, self.t2i.k, is_first=is_first)

    @property
    def _own_captions(self) -> np.ndarray:
        """Those of the panels that this process looks at, panel by panel."""
        return np.concatenate([self.panels[place] for place in self.own] or [np.zeros(0, np.int64)])

    def _positives_of_captions(self, captions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positive pairs of some captions, as places in `captions` and images."""
        image, place = self.positives.of_captions(captions)
        return place, image

    def _positives_of_images(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positive pairs of some images, as places in `images` and among the captions that this process looks at."""
        place_of = np.full(len(self.images), -1)
        place_of[images] = np.arange(len(images))
        found, before = [], 0
        for panel in self.own:
            image, column = self.positives.of_captions(self.panels[panel])
            is_ours = place_of[image] >= 0
            found.append((place_of[image[is_ours]], before + column[is_ours]))
            before += len(self.panels[panel])
        return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def _panels(n_texts: int, block: int) -> list[np.ndarray]:
    """Captions of each panel, in ascending order: runs from all over, so that each is a fair part of a sorted collection."""
    run, count = min(RUN, block), math.ceil(n_texts / block)
    starts = [np.arange(place * run, n_texts, count * run) for place in range(count)]
    panels = [(start[:, None] + np.arange(run)).ravel() for start in starts if len(start)]
    return [captions[captions < n_texts] for captions in panels]
