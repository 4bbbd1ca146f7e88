"""Rank every caption for every image and every image for every caption: exact, in one pass, in little memory.

In:  unit vectors of images and captions, and which captions answer which images.
Out: for each query of both directions its best-scored positive with its rank, and the best non-positives with theirs.

Mining and evaluation both stand on `rank_both_ways`, so a failure and a miss cannot disagree. What makes ranks well
defined:

- A score is a cosine, summed in float64 and rounded to float32. It does not depend on how the matrix is cut into
  blocks, and equal vectors have equal scores.
- The full ranking is in order of score; of equal scores, non-positives stand before positives (a tie counts against
  us: a model that gives everything the same score ranks last), and within each kind the lower index comes first.
- Ranks count from 1 in the full ranking, positives included.

Only blocks of the N x M matrix ever exist; what is kept is O((N + M) k).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from repair_hf.options import UserError

logger = logging.getLogger(__name__)

BLOCK = 2048  # rows and columns of a block of scores: 32 MB in float64
PAIRS_AT_ONCE = 16_384  # single pairs that are scored together
ID_BITS = 0xFFFFFFFF
NO_KEY = (~0x7F800000) << 32  # that of a score of -inf: below every candidate


@dataclass(frozen=True)
class Positives:
    """Which captions answer which images.

    Captions of one group answer the same images; the pairs (group, image) are kept as sorted numbers.

    Args:
        n_images: N.
        group: (M,) the group of each caption.
        members: Sorted `group * n_images + image`, each once.
    """

    n_images: int
    group: np.ndarray
    members: np.ndarray

    @classmethod
    def of(cls, caption_image: np.ndarray, n_images: int, same_text: Sequence[str] | None = None) -> Positives:
        """Each caption answers its own image and, where texts are given, each image with a caption of the same text.

        Args:
            caption_image: (M,) index of each caption's image.
            n_images: N.
            same_text: (M,) texts; equal ones are one caption that stands at several images.
        """
        group = np.asarray(caption_image, np.int64)
        if same_text is not None:
            numbers: dict[str, int] = {}
            group = np.array([numbers.setdefault(text, len(numbers)) for text in same_text])
        return cls(n_images, group, np.unique(group * n_images + caption_image))

    @property
    def doubles(self) -> int:
        """How many pairs are positive by equal text alone."""
        groups = np.arange(self.group.max() + 2) * self.n_images
        images_of_group = np.diff(np.searchsorted(self.members, groups))
        return int(images_of_group[self.group].sum()) - len(self.group)

    def within(self, images: slice, captions: slice) -> tuple[np.ndarray, np.ndarray]:
        """The positive pairs of a block, as image indices and caption indices; in order of caption, then image."""
        base = self.group[captions] * self.n_images  # (c,)
        low = np.searchsorted(self.members, base + images.start)
        count = np.searchsorted(self.members, base + images.stop) - low
        place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        image = self.members[np.repeat(low, count) + place] - np.repeat(base, count)
        return image, np.repeat(np.arange(captions.start, captions.stop), count)


@dataclass(frozen=True)
class Ranking:
    """What one direction found, for Q queries and the k best non-positives of each.

    Args:
        gt: (Q,) the best-scored positive.
        gt_score: (Q,) its cosine, float32.
        gt_rank: (Q,) its rank.
        fp: (Q, k) the best non-positives, best first; -1 where there are fewer than k.
        fp_score: (Q, k) their cosines, float32; -inf where there is none.
        fp_rank: (Q, k) their ranks.
    """

    gt: np.ndarray
    gt_score: np.ndarray
    gt_rank: np.ndarray
    fp: np.ndarray
    fp_score: np.ndarray
    fp_rank: np.ndarray


def rank_both_ways(
    image_embeddings: np.ndarray,
    text_embeddings: np.ndarray,
    positives: Positives,
    *,
    fps_of_image: int = 0,
    fps_of_caption: int = 0,
    block: int = BLOCK,
) -> tuple[Ranking, Ranking]:
    """Rank captions for each image, and images for each caption, by one pass over the blocks of their scores.

    Args:
        image_embeddings: Unit vectors.
        text_embeddings: Unit vectors.
        positives: Which captions answer which images.
        fps_of_image: How many false positives to find for each image.
        fps_of_caption: The same for each caption.
        block: Rows and columns of a block of scores.

    Shape:
        image_embeddings: (N, D); text_embeddings: (M, D).

    Returns:
        The rankings of the N images' captions and of the M captions' images.
    """
    images, texts = image_embeddings, text_embeddings
    cells = [(rows, columns) for rows in _slices(len(images), block) for columns in _slices(len(texts), block)]
    i2t, t2i = _Direction(len(images), fps_of_image), _Direction(len(texts), fps_of_caption)
    for rows, columns in cells:
        for image, caption, scores in _scored_positives(images, texts, positives, rows, columns):
            i2t.offer_positives(image, caption, scores)
            t2i.offer_positives(caption, image, scores)
    for rows, columns in tqdm(cells, desc="Ranking", unit=" blocks", delay=3, disable=None):
        scores = _product(images[rows], texts[columns])  # (rows, columns)
        image, caption = positives.within(rows, columns)
        scores[image - rows.start, caption - columns.start] = -torch.inf
        i2t.see(scores, rows, columns)
        t2i.see(scores.T, columns, rows)
    if fps_of_image or fps_of_caption:
        for rows, columns in cells:
            for image, caption, scores in _scored_positives(images, texts, positives, rows, columns):
                i2t.count_positives_ahead(image, scores)
                t2i.count_positives_ahead(caption, scores)
    return i2t.ranking(), t2i.ranking()


class _Direction:
    """What is known so far of the rankings of one direction's queries.

    Blocks of candidates must come in ascending order: a later candidate that only ties with a kept one loses to it.
    """

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.gt = np.full(queries, -1)  # (Q,)
        self.gt_score = np.full(queries, -np.inf, np.float32)  # (Q,)
        self.non_positives_ahead = np.zeros(queries, np.int64)  # (Q,)
        self.keys = torch.full((queries, k), NO_KEY)  # (Q, k), best first
        self.worst_kept = torch.full((queries,), -torch.inf)  # (Q,)
        self.positives_ahead = np.zeros((queries, k), np.int64)  # (Q, k)

    def offer_positives(self, query: np.ndarray, candidate: np.ndarray, scores: np.ndarray) -> None:
        """Keep each query's best positive. All are (P,)."""
        order = np.lexsort((candidate, -scores, query))
        query, best = np.unique(query[order], return_index=True)
        candidate, scores = candidate[order][best], scores[order][best]
        is_better = scores > self.gt_score[query]
        self.gt[query[is_better]] = candidate[is_better]
        self.gt_score[query[is_better]] = scores[is_better]

    def see(self, scores: Tensor, queries: slice, candidates: slice) -> None:
        """Count who stands before the positive, and keep the best. `scores`: (q, c), -inf where positive."""
        is_ahead = (scores >= torch.from_numpy(self.gt_score[queries])[:, None]).numpy()
        self.non_positives_ahead[queries] += np.count_nonzero(is_ahead, axis=1)
        if not self.k:
            return
        has_better = scores.amax(1) > self.worst_kept[queries]  # few, once the first blocks are seen
        if len(places := has_better.nonzero().squeeze(1)):
            new = _best_keys(scores[places], candidates.start, self.k)  # (places, at least k)
            places += queries.start
            self.keys[places] = torch.cat([self.keys[places], new], 1).topk(self.k).values
            self.worst_kept[places] = _decode(self.keys[places, -1])[0]

    @cached_property
    def best(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores and indices of the best non-positives, (Q, k) each; complete when all blocks were seen."""
        scores, ids = _decode(self.keys)
        return scores.numpy(), ids.where(scores > -torch.inf, -1).numpy()

    def count_positives_ahead(self, query: np.ndarray, scores: np.ndarray) -> None:
        """Count the positives that stand before each false positive. Both are (P,)."""
        fp_score, _ = self.best
        for place in range(self.k):
            np.add.at(self.positives_ahead[:, place], query, scores > fp_score[query, place])

    def ranking(self) -> Ranking:
        fp_score, fp = self.best
        fp_rank = 1 + np.arange(self.k) + self.positives_ahead
        return Ranking(self.gt, self.gt_score, 1 + self.non_positives_ahead, fp, fp_score, fp_rank)


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


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _product(images: np.ndarray, texts: np.ndarray) -> Tensor:
    """All scores of a block."""
    product = torch.from_numpy(images.astype(np.float64)) @ torch.from_numpy(texts.astype(np.float64)).T
    return product.to(torch.float32)


def _scored_positives(
    images: np.ndarray, texts: np.ndarray, positives: Positives, rows: slice, columns: slice
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The positive pairs of a block, some at a time: image indices, caption indices, scores."""
    image, caption = positives.within(rows, columns)
    for some in _slices(len(image), PAIRS_AT_ONCE):
        products = images[image[some]].astype(np.float64) * texts[caption[some]]  # (P, D)
        yield image[some], caption[some], products.sum(1).astype(np.float32)


def _best_keys(scores: Tensor, first_id: int, k: int) -> Tensor:
    """The keys of each row's k best scores and of all that tie with the last of these: (q, c) to (q, w), unordered."""
    least = scores.topk(min(k, scores.shape[1])).values[:, -1:]  # (q, 1)
    row, column = np.nonzero((scores >= least).numpy())
    count = np.bincount(row, minlength=len(scores))
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    keys = torch.full((len(scores), count.max()), NO_KEY)
    keys[row, place] = _keys(scores[row, column], torch.from_numpy(column + first_id))
    return keys


def _keys(scores: Tensor, ids: Tensor) -> Tensor:
    """Scores and ids to integers in the order of the scores; of equal scores the lower id is the greater key."""
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)  # + 0.0 makes of -0.0 the 0.0 that it equals
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (ascending << 32) | (ID_BITS - ids)


def _decode(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Keys to scores and ids."""
    ascending = keys >> 32
    bits = torch.where(ascending < 0, ascending ^ 0x7FFFFFFF, ascending)
    return bits.to(torch.int32).view(torch.float32), ID_BITS - (keys & ID_BITS)
