"""Admit images from outside: what strangers give may name its own files only, and images that all count must open.

`datasets` opens any path and fetches any address when it decodes or embeds a cell, so a dataset of the Hub could read
files of this machine. Therefore paths are made absolute, and those of strangers are checked.

Only headers are read here, so a large dataset opens in seconds. Who decodes an image names a broken one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.compute as pc
from datasets import Dataset, Image, config
from datasets.features.features import require_decoding  # seen with datasets 5.2
from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name  # seen with huggingface_hub 1.33

from repair_hf.pairs.images import UNDECODABLE, TooLarge, open_image, uncopied
from repair_hf.pairs.problems import KINDS
from repair_hf.pairs.tables import cells_of
from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import printable


class OutsideFolder(OSError):
    """A path that leads out of the data's own folder."""


def admit_images(rows: Dataset, source: str | Path, columns: Sequence[str]) -> Dataset:
    """Check the images of a dataset whose rows all count, such as records: one that cannot be used is an error.

    They stand in `columns` alone, and lie in the data's own folder if they are not in the dataset. They must open, and
    none is decoded. Absent images are no error.

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
        unusable = {row: str(error) for row, error in misplaced(rows, column, folders).items()}
        unusable = unusable or _unopened(rows, column)  # no file elsewhere is opened
        if unusable:
            row, why = next(iter(unusable.items()))
            raise UserError(
                f"{source}: {len(unusable):,} images of `{column}` cannot be used, such as that of row {row}: {why}. "
                "Leave these rows out, or store the bytes of good images."
            )
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


def own_folders(source: str | Path) -> list[Path]:
    """Return the folders that hold the files of a local dataset, or of one of the Hub once it is fetched.

    The files of a snapshot in the Hub's cache are links to its `blobs`.
    """
    if (path := Path(source).absolute()).exists():
        folder = path if path.is_dir() else path.parent
        return [folder, *(place.parent / "blobs" for place in folder.parents if place.name == "snapshots")]
    # Where `datasets` unpacks archives is said by its config alone. Seen with datasets 5.2.
    fetched = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=str(source), repo_type="dataset")
    return [fetched, Path(config.DOWNLOADED_DATASETS_PATH), Path(config.EXTRACTED_DATASETS_PATH)]


def file_within(name: str, folders: Iterable[str | Path]) -> Path:
    """Find a file by its name in one of some folders; the file must lie there after links are resolved.

    Raises:
        OutsideFolder: If the name leads out of all folders.
        FileNotFoundError: If there is no such file.
    """
    is_inside = False
    for folder in folders:
        path = Path(folder) / name
        try:
            leads_to = Path(os.path.realpath(path))
        except ValueError as error:  # a name with a null byte, or with half of a surrogate pair
            raise FileNotFoundError(f"'{printable(name)}' is not a file name") from error
        if leads_to.is_relative_to(os.path.realpath(folder)):
            is_inside = True
            if os.path.isfile(path):
                return path
    if is_inside:
        raise FileNotFoundError(f"'{printable(name)}' does not exist")
    raise OutsideFolder(f"'{printable(name)}' lies outside the folder of its data")


def anchored(rows: Dataset, column: str, folder: str | Path) -> Dataset:
    """Make each path of an image column absolute, in the data's folder: `datasets` fetches what looks like an address.

    Cells with bytes are not touched. Without relative paths the dataset is returned as it is.
    """
    if not any(map(_is_relative, _paths(rows, column))):
        return rows
    feature, rows = rows.features[column], rows.cast_column(column, Image(decode=False))

    def anchor(row: dict) -> dict:
        cell = row[column]
        if cell is not None and cell["bytes"] is None and _is_relative(cell["path"]):
            cell = {"bytes": None, "path": os.path.join(os.path.abspath(folder), cell["path"])}
        return {column: cell}

    return rows.map(anchor, features=rows.features, desc="Locating images").cast_column(column, feature)


def misplaced(rows: Dataset, column: str, folders: Sequence[str | Path]) -> dict[int, OSError]:
    """Return the rows of an anchored column whose path names no file in `folders`; bytes are not read."""
    found: dict[int, OSError] = {}
    for row, path in enumerate(_paths(rows, column)):
        if path is not None:
            try:
                file_within(path, folders)
            except (OutsideFolder, FileNotFoundError) as error:
                found[row] = error
    return found


def _is_relative(path: str | None) -> bool:
    return bool(path) and not os.path.isabs(path or "")


def _paths(rows: Dataset, column: str) -> Iterable[str | None]:
    """Yield the path of each cell without bytes, and None for the others."""
    for cells in cells_of(rows, column):
        contents, paths = pc.struct_field(cells, "bytes"), pc.struct_field(cells, "path")
        yield from pc.if_else(contents.is_null(), paths, None).to_pylist()
