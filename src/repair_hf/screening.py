"""Find, by quick products of blocks, the few pairs whose exact score matters; score those, and only those.

In:  vectors of both sides, a panel of captions with its positives, and what each image looks for.
Out: how many non-positives stand before each positive, in both directions; each caption's best non-positives; and the
     pairs that may be among an image's best.

With `scores.screen_error` as eps, a pair that screens at s

- stands before a positive of score g if s >= g + eps, does not if s < g - eps, and is scored exactly between;
- is none of a query's k best if s < (k-th best s) - 2 eps.

The k-th best is known only at the end. A threshold is guessed from the candidates seen so far, with a margin, and raised as
more are seen; parts are strided, so that a sorted collection is no trap. In the end a query has its k best for certain if the
k-th of them scores at least eps above its threshold: whoever was passed over scores less. The few others are *lost*, and to
be ranked directly.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from repair_hf.scores import best_keys, decode, exact_scores, keys_of, kth_score

MARGIN = 3.0  # standard deviations by which a guessed threshold may be off
DEEP = 0.02  # a positive behind this share of the candidates is ranked by counting blocks, not pair by pair
TIES = 8  # times k: a query with so many pairs above its threshold (ties) is ranked directly
FEW = 0.01  # share of a block that may lie above the lower of two thresholds before both are compared
RAISED_AFTER = (4, 10)  # blocks
LOWEST = np.finfo(np.float32).min  # above the -inf that marks positives


class Seeking:
    """What the queries of one direction look for.

    Args:
        gt_score: (Q,) score of each query's best positive.
        eps: Bound of the screen's error.

    Attributes:
        least: (Q,) screened score from which a pair may be among the k best; inf where none is sought.
        passed: (Q,) the greatest that `least` was for any of the candidates.
        is_deep: (Q,) whether the candidates before the positive are so many that whole blocks are counted.
        is_lost: (Q,) whether too many candidates tie for the k best.
    """

    def __init__(self, gt_score: np.ndarray, eps: float) -> None:
        self.gt_score, self.eps = gt_score, eps
        self.least = np.full(len(gt_score), np.inf, np.float32)
        self.passed = np.full(len(gt_score), LOWEST)
        self.is_deep = np.zeros(len(gt_score), bool)
        self.is_lost = np.zeros(len(gt_score), bool)

    @property
    def may_be_ahead(self) -> np.ndarray:
        """(Q,) screened score from which a pair may stand before the positive; inf where blocks are counted."""
        return np.where(self.is_deep, np.inf, self.gt_score - self.eps).astype(np.float32)

    @property
    def is_ahead(self) -> np.ndarray:
        """(Q,) screened score from which a pair stands before the positive for certain; inf where blocks are counted."""
        return np.where(self.is_deep, np.inf, self.gt_score + self.eps).astype(np.float32)

    def begin(self, queries: slice, scores: np.ndarray, k: int, share: float) -> None:
        """Guess from the first part of the candidates. `scores`: (q, c), screened, -inf where positive."""
        if k:
            wanted = rank_in_part(k, share)
            least = _about_the_best(scores, wanted)  # (q,)
            above = np.count_nonzero(scores >= least[:, None], axis=1)
            self.is_lost[queries] = (above > TIES * k * share + 4 * wanted) & (share < 1)
            least = np.maximum(least - np.float32(2 * self.eps), LOWEST)
            self.least[queries] = np.where(self.is_lost[queries], np.inf, least)
        may_be_ahead = self.gt_score[queries] - np.float32(self.eps)
        ahead = np.count_nonzero(scores >= may_be_ahead[:, None], axis=1)
        is_deep = (ahead > DEEP * scores.shape[1]) & (ahead > 1)
        self.is_deep[queries] = is_deep & (may_be_ahead < self.least[queries])  # the others are looked at anyway

    def threshold(self, queries: slice = slice(None)) -> np.ndarray:
        """(q,) screened score from which a pair is looked at."""
        ahead = np.where(self.is_deep[queries], np.inf, self.gt_score[queries] - self.eps)
        return np.minimum(self.least[queries], ahead).astype(np.float32)

    def lost(self, keys: np.ndarray) -> np.ndarray:
        """(Q,) whose k best, `keys` (Q, k), are not certain: someone who was passed over may score as much."""
        if not keys.shape[1]:
            return self.is_lost
        passed = np.maximum(self.least, self.passed)
        is_certain = (decode(keys[:, -1])[0] >= passed + np.float32(self.eps)) | (passed == LOWEST)
        return self.is_lost | ~is_certain

    @classmethod
    def merged(cls, parts: list[Seeking]) -> Seeking:
        """What several first parts of the candidates tell together."""
        whole = cls(parts[0].gt_score, parts[0].eps)
        whole.is_deep = np.any([part.is_deep for part in parts], axis=0)
        whole.is_lost = np.any([part.is_lost for part in parts], axis=0)
        least = [part.least for part in parts]
        whole.least = np.where(whole.is_lost, np.inf, np.min(least, axis=0)).astype(np.float32)
        whole.passed = np.max(least, axis=0)
        return whole

    def raise_to(self, score: np.ndarray) -> None:
        """(Q,) scores that the k-th best is believed to have at least."""
        self.least = np.maximum(self.least, score - np.float32(2 * self.eps))


@dataclass(frozen=True)
class Pairs:
    """Pairs of an image and a caption of a panel.

    Args:
        image: (P,) the image.
        column: (P,) place of the caption in the panel.
        score: (P,) float32, screened or exact.
    """

    image: np.ndarray
    column: np.ndarray
    score: np.ndarray

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, which: np.ndarray) -> Pairs:
        return Pairs(self.image[which], self.column[which], self.score[which])


@dataclass(frozen=True)
class Found:
    """What a panel of C captions told.

    Args:
        ahead_of_caption: (C,) images before its positive, without other positives.
        ahead_of_image: (N,) captions of the panel before its positive.
        keys: (C, k) each caption's best non-positives, best first.
        is_lost: (C,) whether these are not certain.
        pairs: What may be among an image's best, with exact scores.
        of_images: What the images look for.
    """

    ahead_of_caption: np.ndarray
    ahead_of_image: np.ndarray
    keys: np.ndarray
    is_lost: np.ndarray
    pairs: Pairs
    of_images: Seeking


class Panel:
    """Some captions, to be held against all images.

    Args:
        images: (N, D) float32.
        vectors: (C, D) the captions', float32.
        n_texts: Of all panels.
        positives: Those of the panel, with exact scores.
        rows: Images of a block of scores.
        dtype: In which the products are taken.
    """

    def __init__(
        self, images: Tensor, vectors: np.ndarray, n_texts: int, positives: Pairs, rows: int, dtype: torch.dtype
    ) -> None:
        self.images, self.dtype = images, dtype
        self.share = len(vectors) / n_texts
        self.quick = torch.from_numpy(vectors).to(dtype)
        self.exact = torch.from_numpy(vectors.astype(np.float64))
        self.blocks = math.ceil(len(images) / rows)
        block = positives.image % self.blocks
        order = np.argsort(block, kind="stable")
        self.positives = positives[order]
        self.first_positive = np.searchsorted(block[order], np.arange(self.blocks + 1))
        size = math.ceil(len(images) / self.blocks) * len(vectors)
        self.scores = torch.empty(size)
        self.masks = np.empty((2, size), bool)
        self.is_selective = True  # whether few pairs lie above the lower of both sides' thresholds

    def screen(self, block: int) -> np.ndarray:
        """Scores of every `blocks`-th image with the panel, (r, C); -inf where positive."""
        images = self.images[block :: self.blocks]
        scores = self.scores[: len(images) * len(self.quick)].view(len(images), len(self.quick))
        if self.dtype == torch.float32:
            torch.mm(images, self.quick.T, out=scores)
        else:
            scores.copy_(torch.mm(images.to(self.dtype), self.quick.T))
        known = slice(*self.first_positive[block : block + 2])
        scores = scores.numpy()
        scores[self.positives.image[known] // self.blocks, self.positives.column[known]] = -np.inf
        return scores

    def look(self, of_images: Seeking, k_image: int, k_caption: int, *, is_first: bool) -> Found:
        """Hold the panel against all images.

        Args:
            of_images: What the images look for.
            k_image: How many of the best captions are sought for each image.
            k_caption: How many of the best images for each caption.
            is_first: Nothing is known yet of where an image's best begin; find out from this panel.
        """
        n_images, width = len(self.images), len(self.quick)
        gt_score = np.full(width, -np.inf, np.float32)
        np.maximum.at(gt_score, self.positives.column, self.positives.score)
        of_captions = Seeking(gt_score, of_images.eps)
        of_images = copy.deepcopy(of_images) if is_first else of_images
        ahead_of_caption, ahead_of_image = np.zeros(width, np.int64), np.zeros(n_images, np.int64)
        hits: list[Pairs] = []
        for block in range(self.blocks):
            scores, images = self.screen(block), slice(block, None, self.blocks)
            if block == 0:
                of_captions.begin(slice(None), np.ascontiguousarray(scores.T), k_caption, len(scores) / n_images)
            if is_first:
                of_images.begin(images, scores, k_image, self.share)
            if len(deep := np.flatnonzero(of_captions.is_deep)):
                at = np.arange(n_images)[images]
                ahead_of_caption[deep] += self._count(scores[:, deep], at, deep, gt_score[deep], of_images.eps, axis=0)
            if len(deep := np.flatnonzero(of_images.is_deep[images])):
                at = block + self.blocks * deep
                gt = of_images.gt_score[at, None]
                ahead_of_image[at] += self._count(scores[deep], at, np.arange(width), gt, of_images.eps, axis=1)
            hits.append(self._hits(scores, block, of_captions.threshold(), of_images.threshold(images)))
            if k_caption and block + 1 in RAISED_AFTER:
                wanted = rank_in_part(k_caption, (block + 1) / self.blocks)
                seen = _joined(hits)
                of_captions.raise_to(kth_score(seen.column, keys_of(seen.score), width, wanted))
        return self._judged(_joined(hits), of_captions, of_images, ahead_of_caption, ahead_of_image, k_caption)

    def _count(self, scores: np.ndarray, image: np.ndarray, column: np.ndarray, gt: np.ndarray, eps: float, axis: int):
        """Count along an axis who stands before the positives. `scores`: (a, b) of `image` (a,) and `column` (b,)."""
        is_ahead = scores >= gt + np.float32(eps)
        row, place = np.nonzero((scores >= gt - np.float32(eps)) & ~is_ahead)
        exact = exact_scores(self.images.numpy(), image[row], self.exact, column[place])
        is_ahead[row, place] = exact >= np.broadcast_to(gt, scores.shape)[row, place]
        return np.count_nonzero(is_ahead, axis=axis)

    def _hits(self, scores: np.ndarray, block: int, of_captions: np.ndarray, of_images: np.ndarray) -> Pairs:
        """The pairs above either's threshold."""
        mask, other = self.masks[:, : scores.size].reshape(2, *scores.shape)
        if (
            lowers := self.is_selective
        ):  # one comparison for both: captions take the images' lowest threshold for their own
            np.greater_equal(scores, np.minimum(of_captions, of_images.min()), out=mask)
            self.is_selective = np.count_nonzero(mask) < FEW * mask.size
        if not self.is_selective:
            lowers = False
            np.greater_equal(scores, of_captions, out=mask)
            np.greater_equal(scores, of_images[:, None], out=other)
            np.logical_or(mask, other, out=mask)
        place = np.flatnonzero(mask)
        row = place // scores.shape[1]
        column = place - row * scores.shape[1]
        found = Pairs(row, column, scores.ravel()[place])
        if lowers:
            found = found[(found.score >= of_captions[column]) | (found.score >= of_images[row])]
        image = block + self.blocks * found.image
        return Pairs(image.astype(np.int32), found.column.astype(np.int32), found.score)

    def _judged(
        self,
        hits: Pairs,
        of_captions: Seeking,
        of_images: Seeking,
        ahead_of_caption: np.ndarray,
        ahead_of_image: np.ndarray,
        k: int,
    ) -> Found:
        """Score exactly what may matter, and count and rank."""
        width, eps = len(self.quick), of_images.eps
        may_be_kept = hits.score >= of_captions.least[hits.column]
        if k:
            kept = hits[may_be_kept]
            limit = kth_score(kept.column, keys_of(kept.score), width, k) - np.float32(2 * eps)
            may_be_kept &= hits.score >= limit[hits.column]
        is_sought = hits.score >= of_images.least[hits.image]
        sides = ((of_captions, hits.column, ahead_of_caption), (of_images, hits.image, ahead_of_image))
        unsure = []
        for seeking, query, ahead in sides:
            is_ahead = hits.score >= seeking.is_ahead[query]
            ahead += np.bincount(query[is_ahead], minlength=len(ahead))
            unsure.append((hits.score >= seeking.may_be_ahead[query]) & ~is_ahead)
        matters = np.flatnonzero(may_be_kept | is_sought | unsure[0] | unsure[1])
        pairs = hits[matters]
        exact = exact_scores(self.images.numpy(), pairs.image, self.exact, pairs.column)
        pairs = Pairs(pairs.image, pairs.column, exact)
        for (seeking, _, ahead), is_unsure, query in zip(sides, unsure, (pairs.column, pairs.image), strict=True):
            is_ahead = is_unsure[matters] & (exact >= seeking.gt_score[query])
            ahead += np.bincount(query[is_ahead], minlength=len(ahead))
        kept = pairs[may_be_kept[matters]]
        keys = best_keys(kept.column, keys_of(kept.score, kept.image), width, k)
        return Found(
            ahead_of_caption,
            ahead_of_image,
            keys,
            of_captions.lost(keys),
            pairs[is_sought[matters]],
            of_images,
        )


def rank_in_part(k: int, share: float) -> int:
    """The rank, among a share of the candidates, of one that very likely stands behind the k-th best of all."""
    expected = k * share
    return min(k, math.ceil(expected + MARGIN * math.sqrt(expected * (1 - share))) + (share < 1))


def _about_the_best(scores: np.ndarray, wanted: int) -> np.ndarray:
    """At most the `wanted`-th best score of each row, and close to it: (q, c) to (q,)."""
    width = scores.shape[1]
    if wanted > width:
        return np.full(len(scores), LOWEST)
    if wanted < width // 64:  # the best of every eight in place of all: less to sort
        scores = scores[:, : width // 8 * 8].reshape(len(scores), 8, -1).max(axis=1)
    return np.maximum(np.partition(scores, -wanted, axis=1)[:, -wanted], LOWEST)


def _joined(parts: list[Pairs]) -> Pairs:
    return Pairs(*(np.concatenate([vars(part)[name] for part in parts]) for name in ("image", "column", "score")))
