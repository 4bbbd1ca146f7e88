"""One photograph, one image: many datasets have a row per caption, so that a photograph stands in several rows."""

from __future__ import annotations

import logging
from typing import Any

from repair_hf.pairs.cells import equal_cells
from repair_hf.pairs.sources import Listing

logger = logging.getLogger(__name__)


def merge_rows(listing: Listing, source: str, *, by_id_alone: bool) -> Listing:
    """Merge rows of one id and, unless `by_id_alone`, of one image file or of equal bytes.

    The first of them gives id, image and split; all of them give captions. Some photographs of COCO stand in it under
    two ids, and the sizes of benchmarks count both.
    """
    owner: dict[int, str] = {}
    rows: dict[str, int] = {}
    captions: dict[str, list[Any]] = {}
    ids = listing.images["image_id"][:]
    look = range(len(ids)) if by_id_alone else equal_cells(listing.images, "image")
    for row, (image_id, number) in enumerate(zip(ids, look, strict=True)):
        image_id = owner.setdefault(number, image_id)
        rows.setdefault(image_id, row)
        captions.setdefault(image_id, []).extend(listing.captions[row])
    if len(rows) == len(ids):
        return listing
    logger.info("%s: %s rows are %s images, each with all of its captions.", source, f"{len(ids):,}", f"{len(rows):,}")
    splits = None if listing.splits is None else [listing.splits[row] for row in rows.values()]
    return Listing(listing.images.select(list(rows.values())), list(captions.values()), splits, listing.folders)
