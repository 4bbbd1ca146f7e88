"""Admit the images of a dataset whose rows all count, such as records: one that cannot be used is an error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset, Image
from datasets.features.features import require_decoding

from repair_hf.pairs.cells import anchored, misplaced, own_folders, undecoded
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
        unusable = {row: str(error) for row, error in misplaced(rows, column, folders).items()}
        if decode and not unusable:
            is_there = undecoded(rows, column).with_format("arrow")[:][column].is_valid()
            there = is_there.to_numpy().nonzero()[0].tolist()
            looks = zip(there, inspect_images(rows.select(there), folders, column), strict=True)
            unusable = {row: KINDS[look.problem][0] for row, look in looks if look.problem}
        if unusable:
            row, why = next(iter(unusable.items()))
            raise UserError(
                f"{source}: {len(unusable):,} images of `{column}` cannot be used, such as that of row {row}: {why}. "
                "Leave these rows out, or store the bytes of good images."
            )
    return rows
