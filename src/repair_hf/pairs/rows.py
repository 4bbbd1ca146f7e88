"""A row of a source: an image, what the source says of it, and what the image is called."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import url2pathname

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, Features, Image, Value

TEXTS = (Value("string"), Value("large_string"), Value("string_view"))
BYTES = (Value("binary"), Value("large_binary"))
ID_COLUMNS = ("image_id", "filename")  # name the images
MAYBE_IDS = ("cocoid", "id")  # do so where they repeat with the image; else they may number the captions
IMAGES = Features({"image": Image(decode=False)})
_NUMBER = re.compile(r"#\d+$")


class Row(NamedTuple):
    """A row of a source."""

    image: int  # its row in `Listing.images`
    image_id: str
    cell: int  # equal for the same file, or for equal bytes: see `equal_cells`
    captions: list[Any]
    split: str | None = None  # None for all rows of a source without splits
    group: str | None = None


class Listing(NamedTuple):
    """The rows of a source and their images."""

    images: Dataset  # the column `image`, undecoded
    rows: list[Row]
    n_rows: int = 0  # of the source, where several may name one image

    @property
    def has_splits(self) -> bool:
        """Whether the source splits its images."""
        return any(row.split is not None for row in self.rows)


def image_files(paths: Iterable[str | Path | None]) -> Dataset:
    """Return a column of image files, without opening them; None for an absent image."""
    cells = [None if path is None else {"bytes": None, "path": str(path)} for path in paths]
    return Dataset.from_dict({"image": cells}, features=IMAGES)


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


def image_ids(rows: Dataset, column: str | None, names: list[str], cells: list[int]) -> list[str]:
    """Return the id of each row's image, from a column that is given or found by its name, else from `names`.

    Args:
        rows: The source's rows, without its images.
        column: The column of ids. Default: one of `ID_COLUMNS`, or one of `MAYBE_IDS` that repeats with the image.
        names: Each row's own name, for rows without an id.
        cells: A number for each row, equal for equal images.
    """
    found = [column] if column is not None else [name for name in ID_COLUMNS if name in rows.features]
    maybe = [name for name in MAYBE_IDS if name in rows.features and not found]
    found += [name for name in maybe if _repeats_with(plain_texts(rows, name), cells)]
    if not found:
        return names
    ids = zip(names, rows[found[0]][:], strict=True)
    return [name if image_id in (None, "") else str(image_id) for name, image_id in ids]


def encoded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[Any]]:
    """Number the cells of a column, (N,), -1 for null; return the value of each number, too."""
    if pa.types.is_nested(column.type):
        return np.arange(len(column)), []
    is_text = pa.types.is_string(column.type) or pa.types.is_string_view(column.type)
    cells = column.cast(pa.large_string()) if is_text else column  # in one piece it may be above 2 GB
    dictionary = cells.combine_chunks().dictionary_encode()
    return dictionary.indices.fill_null(-1).to_numpy(), dictionary.dictionary.to_pylist()


def file_names(images: Dataset, cells: list[int]) -> list[str] | None:
    """Return the file name of each image, if all have one, and different images have different ones."""
    names = pc.struct_field(images.with_format("arrow")["image"][:], "path").to_pylist()
    if not all(names) or not len(set(names)) == len(set(cells)) == len(set(zip(names, cells, strict=True))):
        return None
    return names


def without_numbers(names: Sequence[str | None]) -> list[str | None]:
    """Drop the numbers of captions, `x.jpg#0`, from the names of images, if all names end in one."""
    there = [name for name in names if name]
    if not there or not all(map(_NUMBER.search, there)):
        return list(names)
    return [_NUMBER.sub("", name) if name else name for name in names]


def plain_texts(rows: Dataset, column: str) -> list[str | None]:
    """Return a column of strings, class labels or other values as strings."""
    feature, values = rows.features[column], rows[column][:]
    name = feature.int2str if isinstance(feature, ClassLabel) else str
    return values if feature in TEXTS else [None if value is None else name(value) for value in values]


def _repeats_with(names: list[str | None], cells: list[int]) -> bool:
    """Return whether some name repeats, and every image has a name of its own."""
    both = len(set(zip(names, cells, strict=True)))
    return both < len(names) and both == len(set(names)) == len(set(cells))
