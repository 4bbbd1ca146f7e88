"""Bootstrap confidence intervals over images: how far might a metric move on other images of the same kind?

An image is drawn together with its captions. They succeed and fail together, and drawing them separately would make
the intervals too narrow. The draws depend on the number of images, the number of resamples and the seed alone. Two
models on the same images are therefore resampled alike, and subtracting their resamples gives the paired difference.

The interval is the percentile interval (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3).
Candidates are not resampled: a query keeps its rank among all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from repair_hf.runtime.options import Bounded, need, opt

LEVEL = 0.95
RESAMPLES = 2000
CELLS = 2**20  # cells in a block of resamples: 8 MB of doubles


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
        means, at_once = np.empty((self.resamples, columns.shape[1])), max(1, CELLS // self.n_images)
        for start in range(0, self.resamples, at_once):
            times = self._times[start : start + at_once].astype(np.float64)
            with np.errstate(invalid="ignore"):
                means[start : start + at_once] = times @ sums / (times @ counts)
        return means.reshape(self.resamples, *np.shape(values)[1:])

    def medians(self, values: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Return the median over each resample's queries: the middle value, or the mean of the two in the middle.

        Shape:
            values, image: (Q,). Returns (R,); NaN if a resample has no queries.
        """
        order = np.argsort(values, kind="stable")
        middle = np.full((self.resamples, 2), np.nan)
        distinct, first = np.unique(np.asarray(values)[order], return_index=True)  # (U,) values, and where each begins
        image = np.asarray(image)[order]
        for row, times in enumerate(self._times):
            up_to = np.add.reduceat(times[image], first, dtype=np.int64).cumsum()  # (U,) queries drawn up to a value
            total = up_to[-1]
            if total:
                middle[row] = distinct[up_to.searchsorted([(total - 1) // 2, total // 2], side="right")]
        return middle.mean(1)

    @cached_property
    def _times(self) -> np.ndarray:
        """How often each image is drawn, (R, N). Bytes suffice: more than 255 draws do not occur in practice."""
        rng, times = np.random.default_rng(self.seed), np.empty((self.resamples, self.n_images), np.uint8)
        for row in times:
            row[:] = np.bincount(rng.integers(0, self.n_images, self.n_images), minlength=self.n_images)
        return times

    def _per_image(self, values: np.ndarray, image: np.ndarray) -> np.ndarray:
        return np.bincount(image, weights=values, minlength=self.n_images)  # (N,)


def interval(samples: np.ndarray) -> tuple[float, float]:
    """Return the bounds that contain 95% of the (R,) resamples; NaN are excluded."""
    tail = (1 - LEVEL) / 2
    low, high = np.nanquantile(samples, [tail, 1 - tail])
    return float(low), float(high)
