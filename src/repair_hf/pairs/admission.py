"""Admit the images of a dataset whose rows all count, such as records: one that cannot be used is an error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset, Image, concatenate_datasets
from datasets.features.features import require_decoding

from repair_hf.pairs.cells import anchored, equal_cells, misplaced, own_folders, undecoded
from repair_hf.pairs.images import inspect_images
from repair_hf.pairs.problems import KINDS
from repair_hf.runtime.options import UserError


def admit_images(rows: Dataset, source: str | Path, columns: Sequence[str], *, decode: bool = True) -> Dataset:
    """Check that images stand in `columns` alone, and lie in the data's own folder if they are not in the dataset.

    With `decode`, each image is decoded too. Absent images are no error.

    Raises:
        UserError: If another column would open files, or an image cannot be used.
    """
    opens_files = {name for name, kind in rows.features.items() if require_decoding(kind)}
    are_images = {name for name, kind in rows.features.items() if isinstance(kind, Image)}
    if wrong := (opens_files - are_images) | (are_images ^ set(columns)):
        kinds = {name: rows.features[name] for name in sorted(wrong)}
        raise UserError(f"{source} has columns of other types than such data: {kinds}. Images belong in {columns}.")
    rows, folders = anchored(rows, columns, source), own_folders(source)
    for column in columns:
        _refuse({row: str(error) for row, error in misplaced(rows, column, folders).items()}, source, column)
    for column, unusable in (_undecodable(rows, columns) if decode and columns else {}).items():
        _refuse(unusable, source, column)
    return rows


def _undecodable(rows: Dataset, columns: Sequence[str]) -> dict[str, dict[int, str]]:
    """Return by column why images cannot be decoded, by row. An image that stands in many rows is decoded once."""
    cells = concatenate_datasets([undecoded(rows, column).rename_column(column, "image") for column in columns])
    is_there = cells.with_format("arrow")[:]["image"].is_valid()
    there = is_there.to_numpy().nonzero()[0]
    numbers = np.array(equal_cells(cells := cells.select(there), "image"))
    _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    looks = inspect_images(cells.select(first))
    found: dict[str, dict[int, str]] = {column: {} for column in columns}
    for place, look in zip(there.tolist(), which.tolist(), strict=True):
        if problem := looks[look].problem:
            found[columns[place // len(rows)]][place % len(rows)] = KINDS[problem]
    return found


def _refuse(unusable: dict[int, str], source: str | Path, column: str) -> None:
    if unusable:
        row, why = next(iter(unusable.items()))
        raise UserError(
            f"{source}: {len(unusable):,} images of `{column}` cannot be used, such as that of row {row}: {why}. "
            "Leave these rows out, or store the bytes of good images."
        )
