"""Bootstrap confidence intervals over images: how far might a metric move on other images of the same kind?

An image is drawn together with its captions. They succeed and fail together, and drawing them separately would make
the intervals too narrow. The draws depend on the number of images, the number of resamples and the seed alone. Two
models on the same images are therefore resampled alike, and subtracting their resamples gives the paired difference.

The interval is the percentile interval (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3).
Candidates are not resampled: a query keeps its rank among all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from repair_hf.runtime.options import Bounded, need, opt

LEVEL = 0.95
RESAMPLES = 2000
CELLS = 2**20  # cells in a block of resamples: 8 MB of doubles
COARSE = 64  # values among which a median is searched first


@dataclass(frozen=True)
class Draws(Bounded):
    """The images of each resample: N of N, with replacement.

    Example:
        >>> draws = Draws(n_images=3, resamples=1000)
        >>> gain = draws.means(after, image) - draws.means(before, image)  # (R,)
        >>> low, high = interval(gain)
    """

    n_images: int = need("Number of images, N.", least=1)
    resamples: int = opt(RESAMPLES, "Number of resamples, R.", least=1)
    seed: int = 0

    def means(self, values: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return the means over each resample's queries; NaN if a resample has no values for a mean.

        Shape:
            values: (Q,) or (Q, K), for one mean or K of them; NaN excludes a query from a mean. image: (Q,), the image
            that each query is, or belongs to. Returns (R,) or (R, K).
        """
        columns = np.asarray(values, np.float64).reshape(len(values), -1)  # (Q, K)
        counts = np.stack([self._per_image(np.isfinite(column), image) for column in columns.T], 1)  # (N, K)
        sums = np.stack([self._per_image(np.nan_to_num(column), image) for column in columns.T], 1)
        with np.errstate(invalid="ignore"):
            found = [times @ sums / (times @ counts) for times in self._blocks(np.float64)]
        return np.concatenate(found).reshape(self.resamples, *np.shape(values)[1:])

    def medians(self, values: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return the median over each resample's queries: the middle value, or the mean of the two in the middle.

        Shape:
            values, image: (Q,). Returns (R,); NaN if a resample has no queries.
        """
        distinct, place = np.unique(values, return_inverse=True)  # (U,), (Q,)
        steps = np.unique(np.linspace(0, len(distinct) - 1, COARSE).round().astype(int))
        coarse = self._middle(place, np.asarray(image), steps)  # (R, 2)
        first, last = steps[max(coarse.min() - 1, 0)], steps[coarse.max()]
        middle = first + self._middle(place, np.asarray(image), np.arange(first, last + 1))
        is_empty = np.isnan(self.means(np.ones(len(place)), image))
        return np.where(is_empty, np.nan, distinct[middle].mean(1))

    def _middle(self, place: np.ndarray, image: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return the first of the sorted `steps` that reach the two middle values of each resample, (R, 2)."""
        cells = image * (len(steps) + 1) + np.searchsorted(steps, place)
        shape = (self.n_images, len(steps) + 1)
        up_to = np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape).cumsum(1)  # (N, steps + 1)
        up_to = up_to.astype(np.float32)  # exact: these are counts
        found = []
        for times in self._blocks(np.float32):
            passed = times @ up_to
            total = passed[:, -1:]
            halves = (np.floor((total - 1) / 2), np.floor(total / 2))
            found.append(np.stack([(passed[:, :-1] > half).argmax(1) for half in halves], 1))
        return np.concatenate(found)

    @cached_property
    def _times(self) -> np.ndarray:
        """How often each image is drawn, (R, N). Bytes suffice: more than 255 draws do not occur in practice."""
        rng, at_once = np.random.default_rng(self.seed), max(1, CELLS // self.n_images)
        times = np.empty((self.resamples, self.n_images), np.uint8)
        for start in range(0, self.resamples, at_once):
            block = times[start : start + at_once]
            drawn = rng.integers(0, self.n_images, block.shape) + np.arange(len(block))[:, None] * self.n_images
            block[:] = np.bincount(drawn.ravel(), minlength=block.size).reshape(block.shape)
        return times

    def _blocks(self, dtype: type) -> Iterator[np.ndarray]:
        at_once = max(1, CELLS // self.n_images)
        for start in range(0, self.resamples, at_once):
            yield self._times[start : start + at_once].astype(dtype)

    def _per_image(self, values: np.ndarray, image: np.ndarray) -> np.ndarray:
        return np.bincount(image, weights=values, minlength=self.n_images)  # (N,)


def interval(samples: np.ndarray) -> tuple[float, float]:
    """Return the bounds that contain 95% of the (R,) resamples; NaN are excluded."""
    tail = (1 - LEVEL) / 2
    low, high = np.nanquantile(samples, [tail, 1 - tail])
    return float(low), float(high)
