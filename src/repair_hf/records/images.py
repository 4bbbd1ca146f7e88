"""Decode the images of records; one that cannot be decoded is an error that names its record."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
from datasets import Dataset

from repair_hf.pairs.images import UNDECODABLE, inspect_images
from repair_hf.runtime.options import UserError

REMEDY = "Make them again with `repair-hf synthesize`, or filter them out."


def check_edits(records: Dataset, named: str) -> None:
    """Check that each edited image can be decoded, before a training that would find it hours later.

    Raises:
        UserError: If one cannot; `named` is where the records come from.
    """
    edits = records.select_columns(["edit_image"]).rename_column("edit_image", "image")
    rows = pc.indices_nonzero(edits.with_format("arrow")[:]["image"].is_valid()).to_pylist()
    looks = inspect_images(edits.select(rows)) if rows else []
    if bad := [row for row, look in zip(rows, looks, strict=True) if look.problem is not None]:
        name = records["record_id"][bad[0]]
        raise UserError(
            f"{named}: {len(bad)} records hold an `edit_image` that cannot be decoded, such as {name}. {REMEDY}"
        )


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
