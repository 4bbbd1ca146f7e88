"""Joining: source pictures back into records that were saved without them.

In:  records whose pictures of q, gt and fp are null, and the pairs that they were made from.
Out: the records with their pictures, found by id.
"""

from __future__ import annotations

from datasets import Dataset, Image

from repair_hf.pairs.dataset import Pairs
from repair_hf.records.columns import MODALITIES, SOURCES
from repair_hf.runtime.options import UserError

AT_ONCE = 100  # records


def join_images(records: Dataset, pairs: Pairs) -> Dataset:
    """Fill in the pictures that are left out; those that are there stay.

    Args:
        records: As `load_records` gives them.
        pairs: What they were made from.

    Raises:
        UserError: If `pairs` lack an image that a record names.
    """
    rows = {name: row for row, name in enumerate(pairs.images["image_id"])}
    sources = pairs.images.select_columns(["image"]).cast_column("image", Image(decode=False))
    cells = [f"{role}_image" for role in SOURCES]
    for cell in cells:
        records = records.cast_column(cell, Image(decode=False))

    def join(batch: dict) -> dict:
        joined = {}
        for role, cell in zip(SOURCES, cells, strict=True):
            joined[cell] = list(batch[cell])
            for place, direction in enumerate(batch["direction"]):
                if MODALITIES[direction][role] == "image" and joined[cell][place] is None:
                    joined[cell][place] = sources[_row_of(batch[f"{role}_id"][place], rows)]["image"]
        return joined

    records = records.map(join, batched=True, batch_size=AT_ONCE, features=records.features, desc="Joining images")
    for cell in cells:
        records = records.cast_column(cell, Image())
    return records


def _row_of(image_id: str, rows: dict[str, int]) -> int:
    if image_id not in rows:
        raise UserError(
            f"The records name the image {image_id!r}, which `pairs` do not have; give the pairs that they were made from."
        )
    return rows[image_id]
