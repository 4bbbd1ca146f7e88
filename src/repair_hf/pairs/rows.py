"""A row of a source: an image, what it is called, and what the source says of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from datasets import Dataset


class Row(NamedTuple):
    """A row of a source."""

    image: int  # its row in `Listing.images`
    image_id: str
    cell: int  # equal for the same file, or for equal bytes: see `equal_cells`
    captions: list[Any]
    split: str | None = None  # None for all rows of a source without splits
    group: str | None = None


class Listing(NamedTuple):
    """The rows of a source and their images."""

    images: Dataset  # the column `image`, undecoded
    rows: list[Row]
    n_rows: int = 0  # of the source, where several may name one image

    @property
    def has_splits(self) -> bool:
        """Whether the source splits its images."""
        return any(row.split is not None for row in self.rows)
