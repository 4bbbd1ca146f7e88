"""List the images and captions of a folder with `captions.jsonl`, of a table, or of a dataset.

No image is decoded here. A row that does not fit the format is collected as a problem and raises no error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from datasets import (
    Dataset,
    DatasetDict,
    DatasetInfo,
    Features,
    Image,
    LargeList,
    List,
    Value,
    concatenate_datasets,
)
from datasets.features.features import require_decoding

from repair_hf.pairs.cells import anchored, own_folders, undecoded
from repair_hf.pairs.fetching import Unfetched, fetch_images, fetched_folder, is_address
from repair_hf.pairs.loading import load_or_stream, stream_rows
from repair_hf.pairs.naming import ID_COLUMNS, MAYBE_IDS, TEXTS, image_ids, plain_texts
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.streaming import Stream
from repair_hf.pairs.tables import is_table, load_table
from repair_hf.runtime.options import UserError
from repair_hf.runtime.texts import read_json_lines

IMAGES = Features({"image_id": Value("string"), "image": Image(decode=False)})
FORM = '{"image": "x.jpg", "captions": ["...", "..."], "split": "train"}'  # `split` is optional


@dataclass(frozen=True)
class Columns:
    """Which dataset it is, where a table or a dataset keeps what, and where the images lie that it names."""

    image: str
    caption: str  # or several, with commas between them
    image_id: str | None = None
    group: str | None = None
    folder: Path | None = None
    config: str | None = None  # of a dataset of the Hub, like its revision
    revision: str | None = None
    private_urls: bool = False
    stream: bool = False

    def captions(self, found: Sequence[str]) -> list[str]:
        """The names of the caption columns."""
        return [self.caption] if self.caption in found else [name.strip() for name in self.caption.split(",")]


@dataclass(frozen=True)
class Listing:
    """The images of a source with their raw captions and splits."""

    images: Dataset  # `image_id`, `image`, encoded, and `group` if the source names groups
    captions: list[list[Any]]  # of each image
    splits: list[str | None] | None  # the source's own split of each image; None if it has none
    folders: Sequence[Path]  # where its files may lie; of a folder that is a link, what it leads to


def read_folder(folder: Path, group: str | None, problems: Problems) -> Listing:
    """Read the lines of `captions.jsonl`, see `FORM`. Images are named relative to the folder or to its `images`.

    `group` is the key of a line's group.
    """
    file = folder / "captions.jsonl"
    parsed = [(number, _usable(row)) for number, row in read_json_lines(file)]
    if parsed and all(row is None for _, row in parsed):
        first = file.read_bytes().split(b"\n")[parsed[0][0] - 1][:100].decode("utf-8", "replace")
        raise UserError(
            f"No line of {file} can be used. Write lines such as {FORM}. `captions` must be a list, even for one "
            f"caption; `split` is optional. The first line is {ascii(first)}."
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
    images = list_files([(row["image"], _locate(folder, row["image"])) for row in rows])
    if group is not None:
        if rows and not any(group in row for row in rows):
            raise UserError(f"no line of {file} has the key `{group}`. Set `group` to one that some have.")
        images = with_groups(images, [row.get(group) for row in rows])
    return Listing(
        images,
        [row["captions"] for row in rows],
        [row.get("split") for row in rows] if has_splits else None,
        (folder, folder / "images"),
    )


def read_dataset(
    source: str,
    splits: Sequence[str],
    columns: Columns,
    problems: Problems,
    data: Dataset | DatasetDict | None = None,
) -> Listing:
    """Read a table, or a dataset of the Hub, of a folder or in memory (`data`, whose name in messages is `source`).

    Texts in the image column are addresses, whose images are downloaded once, or paths, relative to `columns.folder`
    or else to the data's own folder. A column of ids (`ID_COLUMNS`, `MAYBE_IDS`) names the images; if splits use an id
    for different images, split and id do. A row without an id is named by its path, or by split and row. A column
    `split` gives the splits of a dataset that has only one. A lone split named `train` counts as no splits: `datasets`
    uses that name for data without splits.
    """
    (parts, stream), own, relative_to = _parts(source, problems, columns, data)
    wanted = parts
    if splits[0] in parts and len(parts) > 1 and columns.group is None:  # groups are looked for in all splits
        wanted = {name: parts[name] for name in splits if name in parts}
    captions = columns.captions(next(iter(wanted.values())).column_names)
    for part in wanted.values():
        _check_columns(source, part, columns, captions, takes_paths=data is not None or Path(source).exists())
    if stream is not None:
        wanted = {name: stream_rows(stream, name) for name in wanted}
    named = (*ID_COLUMNS, *MAYBE_IDS) if columns.image_id is None else (columns.image_id,)
    needed = tuple(name for name in (columns.image, *captions, columns.group) if name is not None)
    rows = concatenate_datasets([part.select_columns(_columns(part, needed, named)) for part in wanted.values()])
    names = [(name, row) for name, part in wanted.items() for row in range(len(part))]
    of_rows: list[str | None] | None = [name for name, _ in names]
    if len(parts) == 1 and "split" in rows.features:
        of_rows = plain_texts(rows, "split")
    elif list(parts) == ["train"]:
        of_rows = None
    of_row = [f"{name}-{row:07d}" for name, row in names]
    folder = relative_to if data is not None else Path(source)
    if rows.features[columns.image] in TEXTS:
        of_row = [path or name for path, name in zip(rows[columns.image][:], of_row, strict=True)]
        folder = columns.folder or relative_to
        rows, of_row, of_rows = _fetched(rows, of_row, of_rows, columns, problems)
        rows = rows.cast_column(columns.image, Image(decode=False))
    images = undecoded(anchored(rows, [columns.image], folder), columns.image)
    images = images.rename_columns({columns.image: "image"})
    ids = image_ids(rows, columns.image_id, of_row, of_rows, images)
    images = images.add_column("image_id", ids).select_columns(["image_id", "image"])
    if columns.group is not None:
        images = with_groups(images, plain_texts(rows, columns.group))
    folders = [*own, fetched_folder(), *([] if columns.folder is None else [columns.folder])]
    return Listing(images, _captions(rows, captions), of_rows, folders)


def _parts(
    source: str, problems: Problems, columns: Columns, data: Dataset | DatasetDict | None
) -> tuple[tuple[dict[str, Dataset], Stream | None], list[Path], Path]:
    """Return the splits of a source, their stream if any, and the folders of its files and of its relative paths."""
    if data is None:
        if is_table(source):
            loaded, stream = load_table(Path(source), problems), None
        else:
            image = columns.image if columns.stream else None
            loaded, stream = load_or_stream(source, columns.config, columns.revision, image)
        own = own_folders(source)
        return (_splits(loaded), stream), own, own[0]
    # in one piece: `datasets` cannot add a column where others were added before and are not selected
    parts = {name: _in_one_piece(part) for name, part in _splits(data).items()}
    return (parts, None), [Path(os.path.abspath(os.sep))], Path.cwd()  # the caller can open any file of these


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


def with_groups(images: Dataset, groups: Sequence[Any]) -> Dataset:
    """Add the column `group`; an image without a group is a group of its own."""
    names = [
        image_id if group in (None, "") else str(group)
        for image_id, group in zip(images["image_id"], groups, strict=True)
    ]
    return images.add_column("group", names)


def _in_one_piece(data: Dataset) -> Dataset:
    # `cast` would map it in memory, images and all
    return Dataset(data.with_format("arrow")[:], info=DatasetInfo(features=data.features))


def _splits(data: Dataset | DatasetDict) -> dict[str, Dataset]:
    return dict(data) if isinstance(data, DatasetDict) else {"train": data}


def _check_columns(
    source: str, rows: Dataset, columns: Columns, captions: Sequence[str], *, takes_paths: bool
) -> None:
    asked: list[tuple[str, str | None]] = [("image_column", columns.image)]
    asked += [("caption_column", name) for name in captions]
    asked += [("image_id_column", columns.image_id), ("group", columns.group)]
    for option, column in asked:
        if column is not None and column not in rows.features:
            raise UserError(f"`{source}` has no column `{column}`; it has {rows.column_names}. Set `{option}`.")
    image = rows.features[columns.image]
    if not isinstance(image, Image) and not (image in TEXTS and takes_paths):
        raise UserError(f"Column `{columns.image}` of `{source}` holds {image}; cast it to `datasets.Image()`.")
    for name in captions:
        caption = rows.features[name]
        inner = caption.feature if isinstance(caption, List | LargeList) else caption
        if inner not in TEXTS:
            raise UserError(
                f"Column `{name}` of `{source}` holds {caption}; it must hold a string or a list of strings."
            )


def _fetched(
    rows: Dataset, own: list[str], splits: list[str | None] | None, columns: Columns, problems: Problems
) -> tuple[Dataset, list[str], list[str | None] | None]:
    """Put downloaded files in the place of addresses, and leave out rows, their names and splits without a file."""
    names = rows[columns.image][:]
    if not any(map(is_address, names)):
        return rows, own, splits
    files = fetch_images(filter(is_address, names), private=columns.private_urls)
    placed = [files.get(name, name) for name in names]
    for name, file in zip(names, placed, strict=True):
        if isinstance(file, Unfetched):
            problems.add("unfetched_image", f"{name}: {file}")
    kept = [row for row, file in enumerate(placed) if not isinstance(file, Unfetched)]
    if not kept:
        raise UserError(f"No image can be used: {'; '.join(map(str, problems.found()))}.")
    texts = [None if placed[row] is None else str(placed[row]) for row in kept]
    rows = rows.select(kept).remove_columns(columns.image).add_column(columns.image, texts)
    return rows, [own[row] for row in kept], None if splits is None else [splits[row] for row in kept]


def _columns(rows: Dataset, needed: Sequence[str], named: Sequence[str]) -> list[str]:
    others = [name for name in (*named, "split") if name in rows.features and name not in needed]
    # what decodes would open files
    return list(dict.fromkeys((*needed, *(name for name in others if not require_decoding(rows.features[name])))))


def _captions(rows: Dataset, columns: Sequence[str]) -> list[list[Any]]:
    """Return the captions of each row, of all columns."""
    texts = [
        rows[name][:] if rows.features[name] not in TEXTS else [[value] for value in rows[name][:]] for name in columns
    ]
    return [[text for some in of_row for text in some or []] for of_row in zip(*texts, strict=True)]
