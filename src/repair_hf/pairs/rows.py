"""A row of a source: an image, what the source says of it, and what the image is called."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import url2pathname

from datasets import ClassLabel, Dataset, Features, Image, Value

TEXTS = (Value("string"), Value("large_string"), Value("string_view"))
BYTES = (Value("binary"), Value("large_binary"))
ID_COLUMNS = ("image_id", "filename")  # name the images
MAYBE_IDS = ("cocoid", "id")  # do so where they repeat with the image; else they may number the captions
IMAGES = Features({"image": Image(decode=False)})


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

    @property
    def has_splits(self) -> bool:
        """Whether the source splits its images."""
        return any(row.split is not None for row in self.rows)


def image_files(paths: Iterable[str | Path | None]) -> Dataset:
    """Return a column of image files, without opening them; None for an absent image."""
    cells = [None if path is None else {"bytes": None, "path": str(path)} for path in paths]
    return Dataset.from_dict({"image": cells}, features=IMAGES)


def located(folder: Path, name: str) -> Path:
    """Return the path of an image in a folder, which is absolute, or in the folder's `images`, if it is there.

    A Mac may have encoded the accents of its name in another form than the table.
    """
    name = _without_scheme(name)
    forms = dict.fromkeys([name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD"))])
    paths = [place / form for place in (folder, folder / "images") for form in forms]
    return next(filter(os.path.isfile, paths), paths[0])  # no error for any name


def name_in(folder: Path, name: str) -> str:
    """Return the id of an image that is named by an absolute path: ids are published, and its folder may move."""
    path = Path(_without_scheme(name))
    if not path.is_absolute():
        return name
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


def plain_texts(rows: Dataset, column: str) -> list[str | None]:
    """Return a column of strings, class labels or other values as strings."""
    feature, values = rows.features[column], rows[column][:]
    name = feature.int2str if isinstance(feature, ClassLabel) else str
    return values if feature in TEXTS else [None if value is None else name(value) for value in values]


def _repeats_with(names: list[str | None], cells: list[int]) -> bool:
    """Return whether some name repeats, and every image has a name of its own."""
    both = len(set(zip(names, cells, strict=True)))
    return both < len(names) and both == len(set(names)) == len(set(cells))
