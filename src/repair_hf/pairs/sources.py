"""List the images and captions of a folder with `captions.jsonl`, or of a dataset.

No image is decoded here. A row that does not fit the format is collected as a problem and raises no error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    Image,
    LargeList,
    List,
    Value,
    concatenate_datasets,
    load_dataset,
    load_from_disk,
)
from datasets.exceptions import DatasetsError
from datasets.features.features import require_decoding
from yaml import YAMLError

from repair_hf.pairs.cells import anchored, own_folders, undecoded
from repair_hf.pairs.problems import Problems
from repair_hf.runtime.hub_access import name_for_datasets
from repair_hf.runtime.options import UserError
from repair_hf.runtime.texts import read_json_lines

IMAGES = Features({"image_id": Value("string"), "image": Image(decode=False)})
TEXTS = (Value("string"), Value("large_string"))
ID_COLUMNS = ("image_id", "filename")
# What `datasets` raises: no such data, no network, a damaged file, a header of README.md that is no YAML, ...
UNLOADABLE = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, YAMLError, DatasetsError)
FORM = '{"image": "x.jpg", "captions": ["...", "..."], "split": "train"}'  # `split` is optional


@dataclass(frozen=True)
class Listing:
    """The images of a source with their raw captions and splits."""

    images: Dataset  # `image_id` and `image`, encoded
    captions: list[list[Any]]  # of each image
    splits: list[str | None] | None  # the source's own split of each image; None if it has none
    folders: Sequence[Path]  # where its files may lie; of a folder that is a link, what it leads to


def read_folder(folder: Path, problems: Problems) -> Listing:
    """Read the lines of `captions.jsonl`, see `FORM`. Images are named relative to the folder or to its `images`."""
    file = folder / "captions.jsonl"
    parsed = [(number, _usable(row)) for number, row in read_json_lines(file)]
    if parsed and all(row is None for _, row in parsed):
        first = file.read_bytes().split(b"\n")[parsed[0][0] - 1][:100].decode("utf-8", "replace")
        raise UserError(
            f"no line of {file} is of the form {FORM}, where `captions` is a list and `split` "
            f"may be left out; the first is {ascii(first)}."
        )
    rows = []
    for number, row in parsed:
        if row is None:
            problems.add("malformed_row", f"line {number}")
        elif is_outside(row["image"]):
            problems.add("outside_folder", row["image"])
        else:
            rows.append(row)
    has_splits = any("split" in row for row in rows)
    return Listing(
        list_files([(row["image"], _locate(folder, row["image"])) for row in rows]),
        [row["captions"] for row in rows],
        [row.get("split") for row in rows] if has_splits else None,
        (folder, folder / "images"),
    )


def read_dataset(source: str, splits: Sequence[str], image_column: str, caption_column: str) -> Listing:
    """Read a dataset of the Hub or of a folder: an image column, and a column with a caption or a list of captions.

    A column `image_id`, or else `filename`, names the images. Rows of the same name are one image with all their
    captions, unless splits use the name for different images, which are then named by split and name. A row without a
    name is an image of its own, named by split and row. A column `split` gives the splits of a dataset that has only
    one. A lone split named `train` counts as no splits, because `datasets` uses that name for data without splits.
    """
    parts = _load(source)
    wanted = parts
    if splits[0] in parts and len(parts) > 1:
        wanted = {name: parts[name] for name in splits if name in parts}
    for part in wanted.values():
        _check_columns(source, part, image_column, caption_column)
    rows = concatenate_datasets(
        [part.select_columns(_columns(part, image_column, caption_column)) for part in wanted.values()]
    )
    names = [(name, row) for name, part in wanted.items() for row in range(len(part))]
    of_rows: list[str | None] | None = [name for name, _ in names]
    if len(parts) == 1 and "split" in rows.features:
        of_rows = _plain_texts(rows, "split")
    elif list(parts) == ["train"]:
        of_rows = None
    images = undecoded(anchored(rows, [image_column], source), image_column).rename_columns({image_column: "image"})
    ids = [f"{name}-{row:07d}" for name, row in names]
    id_column = next((name for name in ID_COLUMNS if name in rows.features), None)
    if id_column is not None:
        given = rows[id_column][:]
        ids = [own if name in (None, "") else str(name) for own, name in zip(ids, given, strict=True)]
        ids = ids if of_rows is None else _distinct(ids, of_rows, images)
    images = images.add_column("image_id", ids).select_columns(["image_id", "image"])
    is_list = rows.features[caption_column] not in TEXTS
    captions = [(value or []) if is_list else [value] for value in rows[caption_column][:]]
    listing = Listing(images, captions, of_rows, own_folders(source))
    return listing if id_column is None else _grouped(listing)


def _usable(row: Any) -> dict | None:
    match row:
        case {"image": str() as image, "captions": list()} if image and isinstance(row.get("split", ""), str):
            return row
    return None


def is_outside(name: str) -> bool:
    """Whether a name leads out of its folder: downloaded data must not read other files of this machine."""
    path = PurePath(name)
    return path.is_absolute() or ".." in path.parts


def _locate(folder: Path, name: str) -> Path:
    beside, below = folder / name, folder / "images" / name
    return below if os.path.isfile(below) and not os.path.isfile(beside) else beside  # no error for any name


def list_files(named: Iterable[tuple[str, Path]]) -> Dataset:
    """List image files by id, without opening them."""
    named = list(named)
    images = [{"bytes": None, "path": str(path.absolute())} for _, path in named]
    return Dataset.from_dict({"image_id": [name for name, _ in named], "image": images}, features=IMAGES)


def load_any(source: str) -> Dataset | DatasetDict:
    """Load a dataset by Hub id, or from a folder of `save_to_disk` or of data files."""
    is_saved = any((Path(source) / name).is_file() for name in ("dataset_dict.json", "state.json"))
    return load_from_disk(source) if is_saved else load_dataset(name_for_datasets(source))


def _load(source: str) -> dict[str, Dataset]:
    folder = Path(source)
    if folder.is_file():
        raise UserError(
            f"`{source}` is a file; only a caption JSON (.json) is read as one. Give the folder that it lies in: one "
            "with captions.jsonl, or one of a dataset."
        )
    try:
        loaded = load_any(source)
    except UNLOADABLE as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        here = "" if folder.exists() else "is not a local file or folder, and "
        raise UserError(
            f"`{source}` {here}cannot be loaded as a dataset: {reason}. Give a folder with captions.jsonl, a COCO "
            "caption JSON, or the Hub id or folder of a dataset."
        ) from error
    return dict(loaded) if isinstance(loaded, DatasetDict) else {"train": loaded}


def _check_columns(source: str, rows: Dataset, image_column: str, caption_column: str) -> None:
    for option, column in (("image_column", image_column), ("caption_column", caption_column)):
        if column not in rows.features:
            raise UserError(f"`{source}` has no column `{column}`; it has {rows.column_names}. Set `{option}`.")
    if not isinstance(rows.features[image_column], Image):
        kind = rows.features[image_column]
        raise UserError(f"Column `{image_column}` of `{source}` holds {kind}; cast it to `datasets.Image()`.")
    caption = rows.features[caption_column]
    inner = caption.feature if isinstance(caption, List | LargeList) else caption
    if inner not in TEXTS:
        raise UserError(
            f"Column `{caption_column}` of `{source}` holds {caption}; it must hold a string or a list of strings."
        )


def _columns(rows: Dataset, *needed: str) -> list[str]:
    others = [name for name in (*ID_COLUMNS, "split") if name in rows.features and name not in needed]
    return [*needed, *(name for name in others if not require_decoding(rows.features[name]))]  # else opens files


def _plain_texts(rows: Dataset, column: str) -> list[str | None]:
    """Return a column of strings, class labels or other values as strings."""
    feature, values = rows.features[column], rows[column][:]
    name = feature.int2str if isinstance(feature, ClassLabel) else str
    return values if feature in TEXTS else [None if value is None else name(value) for value in values]


def _distinct(ids: list[str], splits: list[str | None], images: Dataset) -> list[str]:
    """Put the split before ids that splits use for different images."""
    first: dict[str, dict[str | None, int]] = {}  # the row that each id has in each split
    for row, (image_id, split) in enumerate(zip(ids, splits, strict=True)):
        first.setdefault(image_id, {}).setdefault(split, row)
    shared = {
        image_id
        for image_id, rows in first.items()
        if len(rows) > 1 and len({_content(images[row]["image"]) for row in rows.values()}) > 1
    }
    named = zip(ids, splits, strict=True)
    return [f"{split}/{image_id}" if image_id in shared else image_id for image_id, split in named]


def _content(image: dict | None) -> bytes | str | None:
    return None if image is None else image["bytes"] or image["path"]


def _grouped(listing: Listing) -> Listing:
    """Merge the rows of each id: the first row's image and split, the captions of all rows."""
    rows: dict[str, int] = {}
    captions: dict[str, list[Any]] = {}
    for row, image_id in enumerate(listing.images["image_id"][:]):
        rows.setdefault(image_id, row)
        captions.setdefault(image_id, []).extend(listing.captions[row])
    splits = None if listing.splits is None else [listing.splits[row] for row in rows.values()]
    return Listing(listing.images.select(list(rows.values())), list(captions.values()), splits, listing.folders)
