"""Admit the images of a dataset whose rows all count, such as records: one that cannot be used is an error.

Only headers are read here, so a large dataset opens in seconds. Who decodes an image names a broken one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset, Image
from datasets.features.features import require_decoding  # seen with datasets 5.2

from repair_hf.pairs.cells import anchored, misplaced, own_folders
from repair_hf.pairs.images import UNDECODABLE, TooLarge, open_image, uncopied
from repair_hf.pairs.problems import KINDS
from repair_hf.runtime.options import UserError


def admit_images(rows: Dataset, source: str | Path, columns: Sequence[str]) -> Dataset:
    """Check that images stand in `columns` alone, and lie in the data's own folder if they are not in the dataset.

    They must open, and none is decoded. Absent images are no error.

    Raises:
        UserError: If another column would open files, or an image cannot be used.
    """
    opens_files = {name for name, kind in rows.features.items() if require_decoding(kind)}
    are_images = {name for name, kind in rows.features.items() if isinstance(kind, Image)}
    if wrong := (opens_files - are_images) | (are_images ^ set(columns)):
        kinds = {name: rows.features[name] for name in sorted(wrong)}
        raise UserError(f"{source} has columns of other types than such data: {kinds}. Images belong in {columns}.")
    folders = own_folders(source)
    for column in columns:
        rows = anchored(rows, column, source)
        _refuse({row: str(error) for row, error in misplaced(rows, column, folders).items()}, source, column)
        _refuse(_unopened(rows, column), source, column)
    return rows


def _unopened(rows: Dataset, column: str) -> dict[int, str]:
    """Return why images cannot be opened, by row."""
    found = {}
    for row, file in enumerate(uncopied(rows, column)):
        try:
            if file is not None:
                open_image(file).close()
        except UNDECODABLE as error:
            found[row] = KINDS["too_large_image" if isinstance(error, TooLarge) else "corrupt_image"]
    return found


def _refuse(unusable: dict[int, str], source: str | Path, column: str) -> None:
    if unusable:
        row, why = next(iter(unusable.items()))
        raise UserError(
            f"{source}: {len(unusable):,} images of `{column}` cannot be used, such as that of row {row}: {why}. "
            "Leave these rows out, or store the bytes of good images."
        )
