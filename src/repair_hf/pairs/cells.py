"""Cells of images: the bytes of an image file, or its path. What strangers give may name its own files only.

`datasets` opens any path and fetches any address when it decodes or embeds a cell, so a dataset of the Hub could read
files of this machine. Therefore paths are made absolute, and those of strangers are checked.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.request import url2pathname

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Features, Image, config
from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name  # seen with huggingface_hub 1.33

from repair_hf.runtime.redaction import printable

CELLS_PER_READ = 256
IMAGES = Features({"image": Image(decode=False)})


class OutsideFolder(OSError):
    """A path that leads out of the data's own folder."""


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


def undecoded(rows: Dataset, column: str) -> Dataset:
    """Return an image column alone, as cells `{"bytes": ..., "path": ...}`."""
    return rows.select_columns([column]).cast_column(column, Image(decode=False))


def anchored(rows: Dataset, columns: Sequence[str], folder: str | Path) -> Dataset:
    """Make each path of image columns absolute, in the data's folder: `datasets` fetches what looks like an address.

    Cells with bytes are not touched. Without relative paths the dataset is returned as it is.
    """
    for column in columns:
        if any(map(_is_relative, _paths(rows, column))):
            feature, rows = rows.features[column], rows.cast_column(column, Image(decode=False))

            def anchor(row: dict, column: str = column) -> dict:
                cell = row[column]
                if cell is not None and cell["bytes"] is None and _is_relative(cell["path"]):
                    cell = {"bytes": None, "path": os.path.join(os.path.abspath(folder), cell["path"])}
                return {column: cell}

            rows = rows.map(anchor, features=rows.features, desc="Locating images").cast_column(column, feature)
    return rows


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


def equal_cells(rows: Dataset, column: str) -> list[int]:
    """Number the images of a column: files and cells of equal bytes share a number; no others do."""
    images, first = undecoded(rows, column).with_format("arrow"), dict[str, int]()
    paths = [path and os.path.normpath(path) for path in _paths(images, column)]
    of_row = [first.setdefault(path, row) if path else row for row, path in enumerate(paths)]
    keys: dict[int, tuple] = dict.fromkeys(of_row, ())  # each file is read once
    for is_whole in (False, True):  # bytes of another length are others
        often, starts = Counter(keys.values()), range(0, len(images), CELLS_PER_READ)
        for start, table in zip(starts, images.iter(CELLS_PER_READ), strict=True):
            for row, content in enumerate(_fields(table[column])[0], start):
                if row in keys and often[keys[row]] > 1:
                    found = _read(content, paths[row], is_whole=is_whole)
                    keys[row] += (("alone", row) if found is None else found,)
    numbers: dict[tuple, int] = {}
    return [numbers.setdefault(keys[row], len(numbers)) for row in of_row]


def uncopied(rows: Dataset, column: str) -> Iterator[pa.Buffer | str | None]:
    """Yield each image of a column: its bytes, without a copy of them, or its path; None for an absent cell."""
    for table in rows.select_columns([column]).with_format("arrow").iter(CELLS_PER_READ):
        for is_there, content, path in zip(table[column].is_valid(), *_fields(table[column]), strict=True):
            found = content.as_buffer() if content.is_valid else path.as_py() or ""
            yield found if is_there.as_py() else None


def _read(content: pa.Scalar, path: str | None, *, is_whole: bool) -> int | bytes | None:
    """Return the size of an image file, or a digest of the whole; None if it cannot be read."""
    if not content.is_valid and not os.path.isfile(path or ""):  # a device or a pipe may never end
        return None
    try:
        with pa.BufferReader(content.as_buffer()) if content.is_valid else open(path or "", "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            return hashlib.sha256(file.read(size)).digest() if is_whole else size
    except OSError:
        return None


def _fields(cells: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    return pc.struct_field(cells, "bytes"), pc.struct_field(cells, "path")  # null in an absent cell


def _is_relative(path: str | None) -> bool:
    return bool(path) and not os.path.isabs(path or "")


def _paths(rows: Dataset, column: str) -> Iterable[str | None]:
    """Yield the path of each cell without bytes, and None for the others."""
    cells = rows.with_format("arrow")[column]  # which decodes nothing
    for start in range(0, len(rows), CELLS_PER_READ):
        contents, paths = _fields(cells[start : start + CELLS_PER_READ])
        yield from pc.if_else(contents.is_null(), paths, None).to_pylist()


def image_files(paths: Iterable[str | Path | None]) -> Dataset:
    """Return a column of image files, without opening them; None for an absent image."""
    cells = [None if path is None else {"bytes": None, "path": str(path)} for path in paths]
    return Dataset.from_dict({"image": cells}, features=IMAGES)


def file_names(images: Dataset, cells: list[int]) -> list[str] | None:
    """Return the file name of each image, if all have one, and different images have different ones."""
    names = pc.struct_field(images.with_format("arrow")["image"][:], "path").to_pylist()
    if not all(names) or not len(set(names)) == len(set(cells)) == len(set(zip(names, cells, strict=True))):
        return None
    return names


def located(folder: Path, name: str) -> str:
    """Return the path of an image in a folder, which is absolute, or in the folder's `images`, if it is there.

    A Mac may have encoded the accents of its name in another form than the table.
    """
    name = _without_scheme(name)
    forms = dict.fromkeys([name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD"))])
    paths = [os.path.join(folder, place, form) for place in ("", "images") for form in forms]
    return next(filter(os.path.isfile, paths), paths[0])  # no error for any name


def name_in(folder: Path, name: str) -> str:
    """Return the id of an image that is named by an absolute path: ids are published, and its folder may move."""
    if not os.path.isabs(plain := _without_scheme(name)):
        return name
    path = Path(plain)
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name


def _without_scheme(name: str) -> str:
    return url2pathname(name[len("file://") :]) if name.startswith("file://") else name
