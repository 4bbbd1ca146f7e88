"""Find, by quick products of blocks, the few pairs whose exact score matters; score those, and only those.

In:  vectors of both sides, a panel of captions with its positives, and what each image looks for.
Out: how many non-positives stand before each positive, in both directions; each caption's best non-positives; and the
     pairs that may be among an image's best.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from repair_hf.mining.scores import best_keys, exact_scores, keys_of, kth_score
from repair_hf.mining.seeking import Seeking, rank_in_part

FEW = 0.015  # share of a block that may lie above the lower of two thresholds before both are compared
RAISED_AFTER = (4, 10)  # blocks


@dataclass(frozen=True)
class ScoredPairs:
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

    def __getitem__(self, which: np.ndarray) -> ScoredPairs:
        return ScoredPairs(self.image[which], self.column[which], self.score[which])


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
    pairs: ScoredPairs
    of_images: Seeking


class Panel:
    """Some captions, to be held against all images.

    Args:
        images: (N, D) float32.
        held: (N, D) the same in float64, or `images` themselves where that is too much to hold.
        screened: (N, D) the same in the screen's dtype, on its device.
        vectors: (C, D) the captions', float32.
        share: That they are of all captions.
        positives: Those of the panel, with exact scores.
        rows: Images of a block of scores.
    """

    def __init__(
        self,
        images: np.ndarray,
        held: np.ndarray | Tensor,
        screened: Tensor,
        vectors: np.ndarray,
        share: float,
        positives: ScoredPairs,
        rows: int,
    ) -> None:
        self.images, self.held, self.screened, self.share = images, held, screened, share
        self.quick = torch.from_numpy(vectors).to(screened)
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
        images = self.screened[block :: self.blocks]
        scores = self.scores[: len(images) * len(self.quick)].view(len(images), len(self.quick))
        if scores.dtype == images.dtype and scores.device == images.device:
            torch.mm(images, self.quick.T, out=scores)
        else:
            scores.copy_(torch.mm(images, self.quick.T))
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
        hits: list[ScoredPairs] = []
        for block in range(self.blocks):
            scores, images = self.screen(block), slice(block, None, self.blocks)
            if block == 0:
                of_captions.begin(slice(None), scores.T, k_caption, len(scores) / n_images)
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
            if k_caption and block + 1 in RAISED_AFTER and block + 1 < self.blocks:  # the last has nothing after it
                wanted = rank_in_part(k_caption, (block + 1) / self.blocks)
                seen = _joined(hits)
                of_captions.raise_to(kth_score(seen.column, keys_of(seen.score), width, wanted))
                self.is_selective = True  # perhaps: fewer lie above what was raised
        return self._judged(_joined(hits), of_captions, of_images, ahead_of_caption, ahead_of_image, k_caption)

    def _count(self, scores: np.ndarray, image: np.ndarray, column: np.ndarray, gt: np.ndarray, eps: float, axis: int):
        """Count along an axis who stands before the positives. `scores`: (a, b) of `image` (a,) and `column` (b,)."""
        is_ahead = scores >= gt + np.float32(eps)
        row, place = np.nonzero((scores >= gt - np.float32(eps)) & ~is_ahead)
        exact = exact_scores(self.images, image[row], self.exact, column[place])
        is_ahead[row, place] = exact >= np.broadcast_to(gt, scores.shape)[row, place]
        return np.count_nonzero(is_ahead, axis=axis)

    def _hits(self, scores: np.ndarray, block: int, of_captions: np.ndarray, of_images: np.ndarray) -> ScoredPairs:
        """The pairs above either's threshold."""
        mask, other = self.masks[:, : scores.size].reshape(2, *scores.shape)
        if self.is_selective:  # one comparison for both: captions take the images' lowest threshold for their own
            place = np.flatnonzero(np.greater_equal(scores, np.minimum(of_captions, of_images.min()), out=mask))
            self.is_selective = len(place) < FEW * mask.size
        if not self.is_selective:
            np.greater_equal(scores, of_captions, out=mask)
            np.greater_equal(scores, of_images[:, None], out=other)
            place = np.flatnonzero(np.logical_or(mask, other, out=mask))
        row = place // scores.shape[1]
        column = place - row * scores.shape[1]
        found = ScoredPairs(row, column, scores.ravel()[place])
        if self.is_selective:
            found = found[(found.score >= of_captions[column]) | (found.score >= of_images[row])]
        image = block + self.blocks * found.image
        return ScoredPairs(image.astype(np.int32), found.column.astype(np.int32), found.score)

    def _judged(
        self,
        hits: ScoredPairs,
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
        exact = exact_scores(self.held, pairs.image, self.exact, pairs.column)
        pairs = ScoredPairs(pairs.image, pairs.column, exact)
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


def _joined(parts: list[ScoredPairs]) -> ScoredPairs:
    return ScoredPairs(
        *(np.concatenate([vars(part)[name] for part in parts]) for name in ("image", "column", "score"))
    )
