"""One photograph, one image: many datasets have a row per caption, so that a photograph stands in several rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from repair_hf.pairs.cells import equal_cells
from repair_hf.pairs.sources import Listing
from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)


def merge_rows(listing: Listing, source: str, *, by_id_alone: bool) -> Listing:
    """Merge rows of one id and, unless `by_id_alone`, of one image file or of equal bytes.

    The first of them gives id, image and split; all of them give captions. Some photographs of COCO stand in it under
    two ids, and the sizes of benchmarks count both. Groups that share an image become one.

    Raises:
        UserError: If the source puts images of one group into several splits.
    """
    owner: dict[int, str] = {}
    rows: dict[str, int] = {}
    captions: dict[str, list[Any]] = {}
    ids = listing.images["image_id"][:]
    look = range(len(ids)) if by_id_alone else equal_cells(listing.images, "image")
    owners = [owner.setdefault(number, image_id) for image_id, number in zip(ids, look, strict=True)]
    for row, image_id in enumerate(owners):
        rows.setdefault(image_id, row)
        captions.setdefault(image_id, []).extend(listing.captions[row])
    images, splits = listing.images, listing.splits
    if "group" in images.features:
        images = _with_joined_groups(images, owners)
    if len(rows) < len(ids):
        images = images.select(list(rows.values()))
        splits = None if splits is None else [splits[row] for row in rows.values()]
        named = (source, f"{len(ids):,}", f"{len(rows):,}")
        logger.info("%s: merged %s rows into %s images; each keeps all of its captions.", *named)
    if "group" in images.features and splits is not None:
        _check_groups(source, images["group"][:], splits)
    return Listing(images, list(captions.values()), splits, listing.folders)


def _with_joined_groups(images: Dataset, owners: Sequence[str]) -> Dataset:
    """Give the rows of one image, and of one group, the first of their groups' names."""
    names = images["group"][:]
    image, group = (np.unique(column, return_inverse=True)[1] for column in (owners, names))
    size = 2 * len(names)
    edges = coo_array((np.ones(len(names), bool), (image, len(names) + group)), shape=(size, size))
    first: dict[int, str] = {}
    parts = connected_components(edges, directed=False)[1][image].tolist()
    joined = [first.setdefault(part, name) for part, name in zip(parts, names, strict=True)]
    return images.remove_columns("group").add_column("group", joined)


def _check_groups(source: str, groups: Sequence[str], splits: Sequence[str | None]) -> None:
    found: dict[str, set[str]] = {}
    for group, split in zip(groups, splits, strict=True):
        if split is not None:
            found.setdefault(group, set()).add(split)
    if torn := [group for group, where in found.items() if len(where) > 1]:
        raise UserError(
            f"`{source}` has {len(torn):,} groups in several splits, such as `{torn[0]}` in {sorted(found[torn[0]])}. "
            "Put each group into one split, or leave out `group`."
        )
