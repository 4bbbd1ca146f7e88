"""The images of records: restore those of sources that were left out, and decode a row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Image

from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.images import UNDECODABLE, undecoded
from repair_hf.pairs.tables import cells_of
from repair_hf.records.columns import MODALITIES, SOURCES
from repair_hf.records.origin import check_pairs
from repair_hf.runtime.options import UserError

BATCH_SIZE = 100  # records
REMEDY = "Make them again with `repair-hf synthesize`, or filter them out."


def lacks_images(records: Dataset) -> bool:
    """Return whether an image of a query, ground truth or false positive is missing."""
    is_of = {way: pc.equal(records.with_format("arrow")["direction"][:], way) for way in MODALITIES}
    for role in SOURCES:
        name, ways = f"{role}_image", [way for way, kinds in MODALITIES.items() if kinds[role] == "image"]
        if name not in records.column_names:
            if any(pc.any(is_of[way]).as_py() for way in ways):
                return True
            continue
        chunks = [chunk for cells in cells_of(records, name) for chunk in cells.is_null().chunks]
        is_null = pa.chunked_array(chunks, pa.bool_())
        if any(pc.any(pc.and_(is_of[way], is_null)).as_py() for way in ways):
            return True
    return False


def restore_images(records: Dataset, pairs: Pairs) -> Dataset:
    """Fill in missing images of q, gt and fp by id, from the pairs of the records; images that are there stay.

    Raises:
        UserError: If `pairs` lack an image that a record names, or have changed since the records were made.
    """
    check_pairs(records, pairs)
    rows = {name: row for row, name in enumerate(pairs.images["image_id"])}
    sources = undecoded(pairs.images, "image")
    cells = [f"{role}_image" for role in SOURCES]
    for cell in cells:
        if cell not in records.column_names:  # of dropped failures
            records = records.add_column(
                cell, pa.nulls(len(records), pa.struct({"bytes": pa.binary(), "path": pa.string()}))
            )
        records = records.cast_column(cell, Image(decode=False))

    def image_of(name: str) -> Any:
        if name not in rows:
            raise UserError(
                f"The records use the image {name!r}, which is not in `pairs`. Give the pairs they were made from."
            )
        return sources[rows[name]]["image"]

    def restore(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        restored = {cell: list(batch[cell]) for cell in cells}
        for role, cell in zip(SOURCES, cells, strict=True):
            for place, direction in enumerate(batch["direction"]):
                if MODALITIES[direction][role] == "image" and restored[cell][place] is None:
                    restored[cell][place] = image_of(batch[f"{role}_id"][place])
        return restored

    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "features": records.features, "desc": "Restoring images"}
    records = records.map(restore, batched=True, **options)
    for cell in cells:
        records = records.cast_column(cell, Image())
    return records


def record_at(records: Dataset, place: int) -> dict[str, Any]:
    """Return a row of records with its images decoded.

    Raises:
        UserError: If one of them cannot be.
    """
    try:
        return records[place]
    except UserError:
        raise
    except UNDECODABLE as error:
        name, why = records["record_id"][place], " ".join(str(error).split())
        raise UserError(f"The record {name} holds an image that cannot be decoded ({why}). {REMEDY}") from error
