"""Decode the images of records; one that cannot be decoded is an error that names its record."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from repair_hf.pairs.images import UNDECODABLE
from repair_hf.runtime.options import UserError

REMEDY = "Make them again with `repair-hf synthesize`, or filter them out."


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
