"""Rank the images and captions of one panel: a panel is some captions, against all images in blocks.

Blocks of scores come from fast products. With eps, the error of such a score (`products`), a pair of score s

- is ahead of a target of score g if s >= g + eps, is not if s < g - eps, and is scored exactly in between;
- is none of a query's k best if s < (k-th best exact score so far) - eps, or if s < (k-th best s so far) - 2 eps.

The bounds only rise, so no candidate is missed. Panels and blocks are strided samples: the bounds rise early, also
in a sorted collection. Pairs above the bounds wait in a pool, and are scored exactly when the panel ends, or when the
pool is full, as with many ties. Of a GPU only counts and the pairs that may matter come back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from repair_hf.mining.queries import Queries
from repair_hf.mining.scores import decode, exact_scores, exact_scores_on_device, keys_of, kth_score
from repair_hf.pairs.truth import Truth

RUN = 16  # neighbouring captions of a panel: a memory-mapped file is read in pieces of this size
POOL = 1 << 20  # pairs that wait
LOWEST = np.finfo(np.float32).min  # above the -inf that marks positives
Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows of images, places in the panel, and scores of products


class ScoreMatrix:
    """The scores of N images and M captions, cut into panels of captions and blocks of images.

    Args:
        images: (N, D) float32 unit vectors. texts: (M, D).
        positives: Which captions answer which images.
        size: Captions of a panel, and images of a block.
        device: Where vectors are multiplied.
    """

    def __init__(
        self, images: np.ndarray, texts: np.ndarray, positives: Truth, size: tuple[int, int], device: torch.device
    ) -> None:
        self.images, self.texts, self.positives = images, texts, positives
        self.size, self.device = size, device
        self.image_tensor = torch.from_numpy(images).to(device)  # on the CPU the same memory
        n_blocks = math.ceil(len(images) / size[1])
        self.blocks = [self.image_tensor[first::n_blocks] for first in range(n_blocks)]
        self.panels = self._panels()

    def _panels(self) -> list[np.ndarray]:
        """Return the captions of each panel: a strided sample of runs of neighbours."""
        run, n_panels = min(RUN, self.size[0]), math.ceil(len(self.texts) / self.size[0])
        starts = [np.arange(panel * run, len(self.texts), n_panels * run) for panel in range(n_panels)]
        panels = [(start[:, None] + np.arange(run)).ravel() for start in starts if len(start)]
        return [captions[captions < len(self.texts)] for captions in panels]

    def exact_scores(self, image: np.ndarray, texts: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Score pairs exactly, (P,): rows of images, and places in the captions' vectors, (C, D)."""
        if self.device.type == "cpu":
            return exact_scores(self.images, image, texts, place)
        return exact_scores_on_device(self.image_tensor, image, torch.from_numpy(texts).to(self.device), place)


class Bounds:
    """What decides about the queries of one side while a panel is ranked.

    Attributes:
        low, high: (Q,) from `high`, a pair is ahead of the query's target; below `low` it is not; in between the exact
            score decides.
        best: (Q,) below it, a pair is none of the query's k best.
        ahead: (Q,) how many non-positives of this panel are ahead of the target.
    """

    def __init__(self, queries: Queries, eps: float, rows: np.ndarray | slice = slice(None)) -> None:
        self.k = queries.k
        self.eps = np.float32(eps)
        self.target = queries.target[rows]
        score = decode(self.target)[0]
        self.low = score - self.eps
        self.high = score + self.eps
        self.best = np.full(len(score), LOWEST if self.k else np.inf, np.float32)
        self.ahead = np.zeros(len(score), np.int64)
        self.raise_by_exact(queries.kth_score(rows))

    def raise_by_exact(self, kth: np.ndarray) -> None:
        """Raise the bounds to the exact score of the k-th best so far, (Q,), less the error."""
        self.best = np.maximum(self.best, kth - self.eps)

    def raise_by_product(self, kth: np.ndarray, rows: np.ndarray | slice = slice(None)) -> None:
        """Raise some bounds to the product's score of the k-th best of some pairs, less twice the error."""
        self.best[rows] = np.maximum(self.best[rows], kth - 2 * self.eps)

    def is_doubtful(self, query: np.ndarray, score: np.ndarray) -> np.ndarray:
        """Whether only the exact score says if a pair, (P,), is ahead."""
        return (score >= self.low[query]) & (score < self.high[query])


class Panel:
    """Some captions, ranked against all images."""

    def __init__(self, matrix: ScoreMatrix, captions: np.ndarray, i2t: Queries, t2i: Queries, eps: float) -> None:
        self.matrix, self.captions, self.i2t, self.t2i = matrix, captions, i2t, t2i
        self.texts = matrix.texts[captions]
        with i2t.lock:
            self.image_bounds = Bounds(i2t, eps)
        self.caption_bounds = Bounds(t2i, eps, captions)

    def rank(self) -> None:
        """Add what the panel holds to the queries of both sides."""
        pool: list[Pairs] = []
        for block, scores in enumerate(self.scores_of_blocks()):
            images = np.arange(block, len(self.matrix.images), len(self.matrix.blocks))
            self.raise_bounds(scores, images, is_first=block == 0)
            pool.append(self.candidates(scores, images))
            is_full = sum(len(image) for image, *_ in pool) > POOL
            if is_full or block & (block + 1) == 0:  # after 1, 2, 4, 8, ... blocks
                pool = [self._still_needed(pool)]
                if len(pool[0][0]) > POOL:
                    self._settle(pool.pop())
        if pool:
            self._settle(self._still_needed(pool))
        self.t2i.ahead[self.captions] = self.caption_bounds.ahead
        with self.i2t.lock:
            self.i2t.ahead += self.image_bounds.ahead

    def scores_of_blocks(self) -> Iterator[Tensor]:
        """Yield the product's scores of each block of images, (r, C), -inf where positive; all share one buffer."""
        blocks, device = self.matrix.blocks, self.matrix.device
        image, place = self.matrix.positives.images_of(self.captions)
        order = np.argsort(image % len(blocks), kind="stable")
        image, place = image[order], place[order]
        ends = np.searchsorted(image % len(blocks), np.arange(len(blocks) + 1))  # of each block's positives
        row_in_block = torch.from_numpy(image // len(blocks)).to(device)
        column = torch.from_numpy(place).to(device)
        texts = torch.from_numpy(self.texts).to(device).T
        products = blocks[0].new_empty(len(blocks[0]), len(self.captions))
        hidden = torch.tensor(-np.inf, device=device)
        for block, start, stop in zip(blocks, ends, ends[1:], strict=False):
            scores = torch.mm(block, texts, out=products[: len(block)])
            yield scores.index_put_((row_in_block[start:stop], column[start:stop]), hidden)

    def raise_bounds(self, scores: Tensor, images: np.ndarray, *, is_first: bool) -> None:
        """Guess the k-th best score of the captions, and of images that have no bound, from one block."""
        if is_first:
            self.caption_bounds.raise_by_product(about_kth_best(scores.T, self.caption_bounds.k))
        unbounded = np.flatnonzero(self.image_bounds.best[images] <= LOWEST)
        if len(unbounded):
            kth = about_kth_best(scores[unbounded], self.image_bounds.k)
            self.image_bounds.raise_by_product(kth, images[unbounded])

    def candidates(self, scores: Tensor, images: np.ndarray) -> Pairs:
        """Count the pairs of a block that are certainly ahead; return those whose exact scores may matter."""
        n_captions = scores.shape[1]
        sides = ((self.image_bounds, images), (self.caption_bounds, np.arange(n_captions)))
        bounds = [
            torch.from_numpy(np.stack([side.low[rows], side.high[rows], side.best[rows]])).to(scores.device)
            for side, rows in sides
        ]
        least_of_image, least_of_caption = (torch.minimum(low, best) for low, _, best in bounds)
        index = flat_indices(scores >= torch.minimum(least_of_image[:, None], least_of_caption))
        row, column, score = index // n_captions, index % n_captions, scores.flatten()[index]
        may_matter = torch.zeros_like(score, dtype=torch.bool)
        for (side, rows), place, side_bounds in zip(sides, (row, column), bounds, strict=True):
            low, high, best = side_bounds[:, place]
            is_ahead = score >= high
            side.ahead[rows] += torch.bincount(place[is_ahead], minlength=len(rows)).cpu().numpy()
            may_matter |= (score >= best) | (score >= low) & ~is_ahead
        return (
            images[row[may_matter].cpu().numpy()],
            column[may_matter].cpu().numpy(),
            score[may_matter].cpu().numpy(),
        )

    def _still_needed(self, pool: Sequence[Pairs]) -> Pairs:
        """Raise the captions' bounds, and keep the pairs that may still matter."""
        image, place, score = (np.concatenate(part) for part in zip(*pool, strict=True))
        images, captions = self.image_bounds, self.caption_bounds
        if captions.k:
            captions.raise_by_product(kth_score(place, score, len(self.captions), captions.k))
        is_needed = (score >= images.best[image]) | (score >= captions.best[place])
        is_needed |= images.is_doubtful(image, score) | captions.is_doubtful(place, score)
        return image[is_needed], place[is_needed], score[is_needed]

    def _settle(self, pairs: Pairs) -> None:
        """Score pairs exactly, count those that were in doubt, and keep the best."""
        image, place, product = pairs
        caption = self.captions[place]
        score = self.matrix.exact_scores(image, self.texts, place)
        for bounds, queries, row, query, candidate in (
            (self.image_bounds, self.i2t, image, image, caption),
            (self.caption_bounds, self.t2i, place, caption, image),
        ):
            keys = keys_of(score, candidate)
            is_ahead = bounds.is_doubtful(row, product) & (keys > bounds.target[row])
            bounds.ahead += np.bincount(row[is_ahead], minlength=len(bounds.ahead))
            if bounds.k:
                is_best = product >= bounds.best[row]
                queries.offer(query[is_best], keys[is_best])
        self.caption_bounds.raise_by_exact(self.t2i.kth_score(self.captions))


def flat_indices(is_chosen: Tensor) -> Tensor:
    """Return the places of the true values in a flattened tensor, (P,). NumPy is much faster than torch on the CPU."""
    if is_chosen.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(is_chosen.numpy()))
    return is_chosen.flatten().nonzero()[:, 0]


def about_kth_best(scores: Tensor, k: int) -> np.ndarray:
    """Return at most the k-th best score of each row, and close to it: (q, c) to (q,)."""
    width = scores.shape[1]
    if not 0 < k <= width:
        return np.full(len(scores), LOWEST)
    if k < width // 64:  # sort the best of every eight instead of all
        scores = scores[:, : width // 8 * 8].unflatten(1, (8, -1)).amax(1)
    return scores.topk(k, sorted=False).values.amin(1).cpu().numpy()
