"""Which images and captions are known to match, originals and edits alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from repair_hf.pairs.wording import bare_caption


class Truth:
    """The images and captions known to match: by annotation, by an edit's own query, by equal wording and by group.

    Args:
        captions: The caption table.
        images, texts: Rows of the image and the caption table that belong together, (pairs,) each.
        groups: Number of each image of the table: what one of them matches, all of equal number match. None: they
            have no groups.
    """

    def __init__(
        self, captions: Sequence[str], images: np.ndarray, texts: np.ndarray, groups: np.ndarray | None = None
    ) -> None:
        number: dict[str, int] = {}
        self._group = np.arange(images.max() + 1) if groups is None else groups
        self._wording = np.array([number.setdefault(bare_caption(text), len(number)) for text in captions])
        self._n = len(number)
        self._keys = np.unique(self._group[images] * self._n + self._wording[texts])  # sorted
        self._count = np.bincount(self._keys // self._n)  # (groups,) wordings that a group is known to match
        self._start = np.cumsum(self._count) - self._count

    def off_diagonal(self, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """Map (n, 3) images and texts, -1 if absent, to (n, 3, 3) matches outside the diagonal, images in rows."""
        keys = self._group[images][:, :, None] * self._n + self._wording[texts][:, None, :]
        known = self._keys[np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)] == keys
        exist = (images >= 0)[:, :, None] & (texts >= 0)[:, None, :]
        return known & exist & ~np.eye(images.shape[1], dtype=bool)

    def wordings(self, texts: np.ndarray) -> np.ndarray:
        """Map rows of the caption table to a number that captions of equal wording share."""
        return self._wording[texts]

    def answers(self, images: np.ndarray) -> np.ndarray:
        """Map (...) rows of the image table to (..., K) numbers of the wordings that match; -1 fills up."""
        places, groups = np.arange(self._count.max()), self._group[images]  # (K,), (...)
        keys = self._keys[np.minimum(self._start[groups][..., None] + places, len(self._keys) - 1)]
        return np.where(places < self._count[groups][..., None], keys % self._n, -1)
