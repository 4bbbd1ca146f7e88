"""Screen a panel of captions against all images with fast products, and score exactly only the pairs that matter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from repair_hf.mining.cutoffs import Cutoffs, rank_in_part
from repair_hf.mining.scores import best_keys, exact_scores, keys_of, kth_score
from repair_hf.pairs.truth import Truth

FEW = 0.015  # share of a block above the lower of two cutoffs, up to which one comparison replaces two
RAISED_AFTER = (4, 10)  # blocks after which the captions' cutoffs are raised


@dataclass(frozen=True)
class ScoredPairs:
    """P pairs of an image and a caption of a panel."""

    image: np.ndarray
    column: np.ndarray  # the caption's place in the panel
    score: np.ndarray  # float32, screened or exact

    def __getitem__(self, which: np.ndarray | slice) -> ScoredPairs:
        return ScoredPairs(self.image[which], self.column[which], self.score[which])


@dataclass(frozen=True)
class ScoreMatrix:
    """The N x M scores of images and captions, cut into panels of captions and blocks of images."""

    images: np.ndarray  # (N, D) float32
    texts: np.ndarray  # (M, D) float32
    positives: Truth
    panels: list[np.ndarray]  # captions of each
    own: range  # places in `panels` of those that this process screens
    n_blocks: int  # block b holds every `n_blocks`-th image from b on
    eps: float  # bound of the screen's error
    images64: np.ndarray | Tensor  # (N, D) in float64, or `images` where that takes too much memory
    screen_images: Tensor  # (N, D) in the screen's dtype, on its device

    @property
    def own_captions(self) -> np.ndarray:
        """Captions that this process screens, panel by panel."""
        return np.concatenate([self.panels[place] for place in self.own] or [np.zeros(0, np.int64)])

    def positives_of(self, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Positive pairs of a panel as images and places in the panel, in order of image."""
        image, column = self.positives.images_of(self.panels[place])
        order = np.argsort(image, kind="stable")
        return image[order], column[order]

    def positives_of_captions(self, captions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positive pairs of some captions as places in `captions` and images."""
        image, place = self.positives.images_of(captions)
        return place, image

    def positives_of_images(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positive pairs of some images as places in `images` and in `own_captions`."""
        place_of = np.full(len(self.images), -1)
        place_of[images] = np.arange(len(images))
        parts, before = [], 0
        for panel in self.own:  # one at a time, for little memory
            image, column = self.positives.images_of(self.panels[panel])
            is_ours = place_of[image] >= 0
            parts.append((place_of[image[is_ours]], before + column[is_ours]))
            before += len(self.panels[panel])
        places, captions = zip(*parts, strict=True)
        return np.concatenate(places), np.concatenate(captions)


@dataclass(frozen=True)
class PanelRanks:
    """What a panel of C captions adds to the rankings."""

    ahead_of_caption: np.ndarray  # (C,) images ahead of its positive, other positives not counted
    ahead_of_image: np.ndarray  # (N,) captions of the panel ahead of its positive
    keys: np.ndarray  # (C, k) each caption's best non-positives, best first
    is_uncertain: np.ndarray  # (C,) whether `keys` may miss some
    pairs: ScoredPairs  # that may be among an image's best, with exact scores
    of_images: Cutoffs


def screen_panel(
    matrix: ScoreMatrix,
    place: int,
    positives: ScoredPairs,
    of_images: Cutoffs,
    k_caption: int,
    *,
    share: float | None = None,
) -> PanelRanks:
    """Screen a panel against all images, and score exactly the pairs that may matter.

    The panel is `matrix.panels[place]`, and its positive pairs have exact scores. `share`, its share of captions,
    is for guessing the images' cutoffs; None keeps them.
    """
    captions = matrix.texts[matrix.panels[place]]
    captions64 = torch.from_numpy(captions.astype(np.float64))
    n_images, width = len(matrix.images), len(captions)
    gt_score = np.full(width, -np.inf, np.float32)
    np.maximum.at(gt_score, positives.column, positives.score)
    of_captions = Cutoffs(gt_score, k_caption, matrix.eps)
    ahead_of_caption, ahead_of_image = np.zeros(width, np.int64), np.zeros(n_images, np.int64)
    candidates = _Candidates(matrix.n_blocks, math.ceil(n_images / matrix.n_blocks) * width)
    for block, scores in enumerate(_screened_blocks(matrix, captions, positives)):
        images = slice(block, None, matrix.n_blocks)
        if block == 0:
            of_captions.guess(slice(None), scores.T, len(scores) / n_images)
        if share is not None:
            of_images.guess(images, scores, share)
        ahead_of_caption += _ahead_of_deep(matrix, captions64, scores, block, of_captions, axis=0)
        ahead_of_image[images] += _ahead_of_deep(matrix, captions64, scores, block, of_images, axis=1)
        candidates.add(scores, block, of_captions.lowest(), of_images.lowest(images))
        if k_caption and block + 1 in RAISED_AFTER and block + 1 < matrix.n_blocks:
            candidates.raise_cutoffs(of_captions, (block + 1) / matrix.n_blocks)
    pairs = candidates.joined()
    return _ranked(matrix, captions64, pairs, of_captions, of_images, ahead_of_caption, ahead_of_image)


def _screened_blocks(matrix: ScoreMatrix, captions: np.ndarray, positives: ScoredPairs) -> Iterator[np.ndarray]:
    """Yield the screened scores of each block with the captions, (r, C), -inf where positive; all share one buffer."""
    n_blocks, screen_captions = matrix.n_blocks, torch.from_numpy(captions).to(matrix.screen_images)
    block_of = positives.image % n_blocks
    order = np.argsort(block_of, kind="stable")
    positives = positives[order]
    first_positive = np.searchsorted(block_of[order], np.arange(n_blocks + 1))
    buffer = torch.empty(math.ceil(len(matrix.images) / n_blocks) * len(captions))
    for block in range(n_blocks):
        images = matrix.screen_images[block::n_blocks]
        scores = buffer[: len(images) * len(captions)].view(len(images), len(captions))
        if scores.dtype == images.dtype and scores.device == images.device:
            torch.mm(images, screen_captions.T, out=scores)
        else:
            scores.copy_(torch.mm(images, screen_captions.T))
        known = positives[slice(*first_positive[block : block + 2])]
        scores.numpy()[known.image // n_blocks, known.column] = -np.inf
        yield scores.numpy()


def _ahead_of_deep(
    matrix: ScoreMatrix, captions64: Tensor, scores: np.ndarray, block: int, cutoffs: Cutoffs, axis: int
) -> np.ndarray:
    """Count the candidates of a block along an axis that are ahead of each deep positive; 0 for other positives."""
    image, column = np.arange(block, len(matrix.images), matrix.n_blocks), np.arange(scores.shape[1])
    deep = np.flatnonzero(cutoffs.is_deep[image if axis else column])
    count = np.zeros(scores.shape[1 - axis], np.int64)
    if not len(deep):
        return count
    if axis:
        image, scores = image[deep], scores[deep]
        gt = cutoffs.gt_score[image, None]
    else:
        column, scores = deep, scores[:, deep]
        gt = cutoffs.gt_score[column]
    eps = np.float32(matrix.eps)
    is_ahead = scores >= gt + eps
    row, place = np.nonzero((scores >= gt - eps) & ~is_ahead)
    exact = exact_scores(matrix.images, image[row], captions64, column[place])
    is_ahead[row, place] = exact >= np.broadcast_to(gt, scores.shape)[row, place]
    count[deep] = np.count_nonzero(is_ahead, axis=axis)
    return count


class _Candidates:
    """The pairs of a panel above the cutoff of their image or of their caption."""

    def __init__(self, n_blocks: int, block_size: int) -> None:
        self.n_blocks = n_blocks
        self.parts: list[ScoredPairs] = []
        self.masks = np.empty((2, block_size), bool)
        self.are_few = True  # whether few pairs are above the lower of both cutoffs

    def add(self, scores: np.ndarray, block: int, of_captions: np.ndarray, of_images: np.ndarray) -> None:
        """Add those of a block."""
        mask, other = self.masks[:, : scores.size].reshape(2, *scores.shape)
        if self.are_few:  # one comparison for both: with the lower of the caption's cutoff and all images'
            place = np.flatnonzero(np.greater_equal(scores, np.minimum(of_captions, of_images.min()), out=mask))
            self.are_few = len(place) < FEW * mask.size
        if not self.are_few:
            np.greater_equal(scores, of_captions, out=mask)
            np.greater_equal(scores, of_images[:, None], out=other)
            place = np.flatnonzero(np.logical_or(mask, other, out=mask))
        row = place // scores.shape[1]
        column = place - row * scores.shape[1]
        pairs = ScoredPairs(row, column, scores.ravel()[place])
        if self.are_few:
            pairs = pairs[(pairs.score >= of_captions[column]) | (pairs.score >= of_images[row])]
        image = block + self.n_blocks * pairs.image
        self.parts.append(ScoredPairs(image.astype(np.int32), pairs.column.astype(np.int32), pairs.score))

    def joined(self) -> ScoredPairs:
        names = ("image", "column", "score")
        return ScoredPairs(*(np.concatenate([getattr(part, name) for part in self.parts]) for name in names))

    def raise_cutoffs(self, of_captions: Cutoffs, share: float) -> None:
        """Raise the captions' cutoffs after this share of the images."""
        pairs, wanted = self.joined(), rank_in_part(of_captions.k, share)
        of_captions.raise_to(kth_score(pairs.column, keys_of(pairs.score), len(of_captions.top_k), wanted))
        self.are_few = True  # perhaps: fewer are above the raised cutoffs


def _ranked(
    matrix: ScoreMatrix,
    captions64: Tensor,
    pairs: ScoredPairs,
    of_captions: Cutoffs,
    of_images: Cutoffs,
    ahead_of_caption: np.ndarray,
    ahead_of_image: np.ndarray,
) -> PanelRanks:
    """Score exactly the pairs that may matter, and rank by these scores."""
    width, k = len(captions64), of_captions.k
    may_be_kept = pairs.score >= of_captions.top_k[pairs.column]
    if k:
        kept = pairs[may_be_kept]
        limit = kth_score(kept.column, keys_of(kept.score), width, k) - np.float32(2 * matrix.eps)
        may_be_kept &= pairs.score >= limit[pairs.column]
    is_wanted = pairs.score >= of_images.top_k[pairs.image]
    sides = ((of_captions, pairs.column, ahead_of_caption), (of_images, pairs.image, ahead_of_image))
    unsure = []
    for cutoffs, query, ahead in sides:
        is_ahead, is_unsure = cutoffs.ahead(query, pairs.score)
        ahead += np.bincount(query[is_ahead], minlength=len(ahead))
        unsure.append(is_unsure)
    matters = np.flatnonzero(may_be_kept | is_wanted | unsure[0] | unsure[1])
    pairs = pairs[matters]
    exact = exact_scores(matrix.images64, pairs.image, captions64, pairs.column)
    pairs = ScoredPairs(pairs.image, pairs.column, exact)
    for (cutoffs, _, ahead), is_unsure, query in zip(sides, unsure, (pairs.column, pairs.image), strict=True):
        is_ahead = is_unsure[matters] & (exact >= cutoffs.gt_score[query])
        ahead += np.bincount(query[is_ahead], minlength=len(ahead))
    kept = pairs[may_be_kept[matters]]
    keys = best_keys(kept.column, keys_of(kept.score, kept.image), width, k)
    is_uncertain = of_captions.uncertain(keys)
    return PanelRanks(ahead_of_caption, ahead_of_image, keys, is_uncertain, pairs[is_wanted[matters]], of_images)
