"""Which images and captions are known to match, originals and edits alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repair_hf.pairs.dataset import bare_caption


class Truth:
    """The images and captions known to match: by annotation, by an edit's own query, and by equal wording.

    Args:
        captions: The caption table.
        images, texts: Rows of the image and the caption table that belong together, (pairs,) each.
    """

    def __init__(self, captions: Sequence[str], images: np.ndarray, texts: np.ndarray) -> None:
        number: dict[str, int] = {}
        self._wording = np.array([number.setdefault(bare_caption(text), len(number)) for text in captions])
        self._n = len(number)
        self._keys = np.unique(images * self._n + self._wording[texts])  # sorted
        self._count = np.bincount(self._keys // self._n)  # (images,) wordings that an image is known to match
        self._start = np.cumsum(self._count) - self._count

    def off_diagonal(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """Map (n, 3) images and texts, -1 if absent, to (n, 3, 3) matches outside the diagonal, images in rows."""
        keys = images[:, :, None] * self._n + self._wording[texts][:, None, :]
        known = self._keys[np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)] == keys
        exist = (images >= 0)[:, :, None] & (texts >= 0)[:, None, :]
        return known & exist & ~np.eye(images.shape[1], dtype=bool)

    def wordings(self, texts: np.ndarray) -> np.ndarray:
        """Map rows of the caption table to a number that captions of equal wording share."""
        return self._wording[texts]

    def answers(self, images: np.ndarray) -> np.ndarray:
        """Map (...) rows of the image table to (..., K) numbers of the wordings that match; -1 fills up."""
        places = np.arange(self._count.max())  # (K,)
        keys = self._keys[np.minimum(self._start[images][..., None] + places, len(self._keys) - 1)]
        return np.where(places < self._count[images][..., None], keys % self._n, -1)
