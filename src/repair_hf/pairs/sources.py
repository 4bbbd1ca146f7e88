"""Read the rows of any source: a table, a folder with `captions.jsonl`, a caption JSON, or a dataset.

No image is decoded here. A row that does not fit the format is collected as a problem and raises no error.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from datasets import (
    Dataset,
    DatasetDict,
    DatasetInfo,
    concatenate_datasets,
)

from repair_hf.pairs.annotations import load_annotations
from repair_hf.pairs.cells import (
    OutsideFolder,
    anchored,
    equal_cells,
    file_names,
    image_files,
    located,
    misplaced,
    name_in,
    own_folders,
    undecoded,
)
from repair_hf.pairs.columns import (
    TEXTS,
    caption_columns,
    captions_of,
    encoded,
    image_columns,
    image_ids,
    needed_columns,
    plain_texts,
    without_numbers,
)
from repair_hf.pairs.fetching import fetch_images, is_address
from repair_hf.pairs.folders import load_pairs_of, loading
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.rows import Listing, Row
from repair_hf.pairs.tables import TABLES, is_table, load_table
from repair_hf.pairs.wording import bare_caption
from repair_hf.runtime.options import PairsOptions, UserError

logger = logging.getLogger(__name__)

OF_HUB = ("pairs_config", "pairs_revision")
OF_COLUMNS = ("image_column", "caption_column", "image_id_column", "group", *OF_HUB)


def read_listing(
    options: PairsOptions, data: Dataset | DatasetDict | None, splits: Sequence[str], problems: Problems
) -> Listing:
    """Read the rows of `options.pairs`, or of `data`, a dataset in memory that has this name in messages.

    A dataset with several splits is read only in `splits`, unless groups must be found in all of them.

    Raises:
        UserError: If there is no such source, or it is of no known kind.
    """
    path = Path(options.pairs)
    folder = path if data is None and path.is_dir() else path.parent  # of a dataset in memory the current one
    is_here = data is not None or path.exists()
    if data is None and path.suffix == ".json" and not is_table(path):
        _refuse(options, OF_COLUMNS, "a table or a dataset")
        loaded: Dataset | DatasetDict = load_annotations(path, options.image_folder, problems)
    else:
        if is_here:
            _refuse(options, OF_HUB, "the Hub")
        loaded = _load(options, problems) if data is None else data
    parts = dict(loaded) if isinstance(loaded, DatasetDict) else {"train": loaded}
    if data is not None:
        # `datasets` cannot add a column where others were added before and are not selected
        parts = {name: _in_one_piece(part) for name, part in parts.items()}
    rows = _rows_of(parts, options, splits, takes_paths=is_here)
    return _list_rows(rows, options, problems, folder, None if is_here else own_folders(options.pairs))


def _refuse(options: PairsOptions, names: Sequence[str], right: str) -> None:
    """Raise an error if an option of another kind of source is set."""
    set_ones = [name for name in names if getattr(options, name) != getattr(PairsOptions, name)]
    if set_ones:
        named = " and ".join(f"`{name}` {getattr(options, name)}" for name in set_ones)
        raise UserError(f"{named}: only for {right}, and `{options.pairs}` is another source. Leave it out.")


def _load(options: PairsOptions, problems: Problems) -> Dataset | DatasetDict:
    """Load a table, or a dataset by its folder or Hub id."""
    source, path = options.pairs, Path(options.pairs)
    table = path / "captions.jsonl" if path.is_dir() else path
    if is_table(table):
        return load_table(table, problems)
    if path.is_dir() and (inner := sorted(path.glob("*/captions.jsonl"))) and not any(map(is_table, path.iterdir())):
        raise UserError(f"`{source}` has no captions.jsonl, but a folder in it has: give {inner[0].parent}.")
    if path.is_file() and path.suffix != ".tar":
        raise UserError(
            f"`{source}` is a file; only tables ({', '.join(TABLES)}), .json and .tar are read as one. Give one of "
            "these, or the folder of a dataset."
        )
    remedy = "Give a folder with captions.jsonl, a table, a caption JSON of COCO, or a dataset: its Hub id or folder."
    with loading(source, remedy):
        return load_pairs_of(options, problems)


def _in_one_piece(data: Dataset) -> Dataset:
    # Without a fingerprint `datasets` would hash all images; `cast` would map them in memory. Nothing public gives
    # the fingerprint, or the rows of a selection. Seen with datasets 5.2.
    whole = Dataset(data.data.table, info=DatasetInfo(features=data.features), fingerprint=data._fingerprint)
    return whole if data._indices is None else whole.select(data._indices.column(0).to_numpy())


def _images(rows: Dataset, columns: Sequence[str]) -> Dataset:
    """Return the image of each row, undecoded: that of the first of some columns which holds one."""
    of_columns = [undecoded(rows, name).rename_columns({name: "image"}) for name in columns]
    has = np.array([each.with_format("arrow")["image"][:].is_valid().to_numpy() for each in of_columns])
    images = concatenate_datasets(of_columns)
    return images if len(columns) == 1 else images.select(has.argmax(0) * len(rows) + np.arange(len(rows)))


class _Rows(NamedTuple):
    """The rows of the splits that are read."""

    table: Dataset  # the columns of images and captions, and the others that are needed
    images: list[str]  # names of columns
    captions: list[str]
    parts: list[tuple[str, int]]  # the splits as the source has them, with their numbers of rows
    splits: list[str | None]  # that each row belongs to, (N,)

    @property
    def others(self) -> list[str]:
        return [name for name in self.table.column_names if name not in (*self.images, *self.captions)]

    def names(self, places: np.ndarray) -> list[str]:
        """Name some rows by their part and number."""
        stops = np.cumsum([0, *(count for _, count in self.parts)])
        part = np.searchsorted(stops, places, side="right") - 1
        named = zip(part.tolist(), (places - stops[part]).tolist(), strict=True)
        return [f"{self.parts[number][0]}-{row:07d}" for number, row in named]


def _rows_of(parts: dict[str, Dataset], options: PairsOptions, splits: Sequence[str], *, takes_paths: bool) -> _Rows:
    """Join the splits that are wanted, with the columns that are needed.

    A column `split` gives the splits of a dataset that has only one. A lone split named `train` counts as no splits:
    `datasets` uses that name for data without splits.
    """
    wanted = parts
    if splits[0] in parts and len(parts) > 1 and options.group is None:
        wanted = {name: parts[name] for name in splits if name in parts}
    known = next(iter(wanted.values())).column_names
    columns, captions = image_columns(options.image_column, known), caption_columns(options.caption_column, known)
    table = concatenate_datasets(
        [needed_columns(part, options, columns, captions, takes_paths=takes_paths) for part in wanted.values()]
    )
    sizes = [(name, len(part)) for name, part in wanted.items()]
    if len(parts) == 1 and "split" in table.features:
        of_rows = plain_texts(table, "split")
    else:
        lone = [*parts] == ["train"]
        of_rows = [None if lone else name for name, count in sizes for _ in range(count)]
    return _Rows(table, columns, captions, sizes, of_rows)


def _list_rows(
    rows: _Rows, options: PairsOptions, problems: Problems, folder: Path, own: Sequence[Path] | None
) -> Listing:
    """List rows. Those that name one image file, and are equal but for their captions, are one.

    An image without an id is named by its path, address or file name, or else by its split and number.
    Relative paths start in `folder`, texts in `options.image_folder` if that is set. `own` are the folders that hold
    the files of a dataset of the Hub, and None for the user's own data, which may name any file.
    """
    column, start = rows.images[0], Path(options.image_folder or folder).absolute()
    is_named = rows.table.features[column] in TEXTS
    number: np.ndarray = np.arange(len(rows.table))
    paths: list[str | None] = []
    if is_named:
        number, paths = _numbered(rows)
    captions = captions_of(rows.table, rows.captions, number, options.pairs)
    first = np.unique(number, return_index=True)[1]  # a row of each number
    table, names = rows.table.select_columns([*rows.images, *rows.others]).select(first), rows.names(first)
    if is_named:
        names = [path or name for path, name in zip(paths, names, strict=True)]
        images, lost = _files(paths, start, problems)
        cells = equal_cells(images, "image")
        lost |= _placeholders(names, cells, captions, problems)
    else:
        images = _images(anchored(table, rows.images, folder), rows.images)
        lost = set() if own is None else _outside(images, own, names, problems)
        cells = equal_cells(images, "image")
        names = file_names(images, cells) or names
    ids = image_ids(table.remove_columns(rows.images), options.image_id_column, names, cells)
    ids = [name_in(start, image_id) for image_id in ids]
    groups = [None] * len(table) if options.group is None else plain_texts(table, options.group)
    splits = [rows.splits[place] for place in first]
    listed = map(Row, range(len(table)), ids, cells, captions, splits, groups)
    return Listing(images, [row for row in listed if row.image not in lost], len(number))


def _numbered(rows: _Rows) -> tuple[np.ndarray, list[str | None]]:
    """Number rows, (N,), so that those of one image with equal ids, split and group share a number.

    Numbers are in the order of their first rows. The path of each number's image is returned, too.
    """
    code, paths = encoded(rows.table.with_format("arrow")[rows.images[0]][:])
    code = np.array(pd.factorize(np.array([*without_numbers(paths), None], object))[0])[code]
    paths = list(dict.fromkeys(without_numbers(paths)))
    number = np.where(code < 0, len(paths) + np.arange(len(code)), code)  # rows without an image stay apart
    others = [encoded(rows.table.with_format("arrow")[name][:])[0] for name in rows.others]
    for other in (*others, pd.factorize(np.array(rows.splits, object))[0]):
        number = pd.factorize(number * (other.max(initial=0) + 2) + other + 1)[0]
    number = pd.factorize(number)[0]
    first = np.unique(number, return_index=True)[1]
    return number, [None if code[row] < 0 else paths[code[row]] for row in first]


def _placeholders(
    names: Sequence[str], cells: Sequence[int], captions: Sequence[list[str | None]], problems: Problems
) -> set[int]:
    """Return the rows whose addresses give one picture for different captions: it may say that theirs is gone."""
    texts: dict[int, dict[str, set[str]]] = {}  # of each address of a picture
    for name, cell, of_row in zip(names, cells, captions, strict=True):
        if is_address(name):
            of_address = texts.setdefault(cell, {}).setdefault(name, set())
            of_address |= {bare_caption(text) for text in of_row if text}
    doubtful = {cell for cell, addresses in texts.items() if len(set(map(frozenset, addresses.values()))) > 1}
    lost = [row for row, cell in enumerate(cells) if cell in doubtful and is_address(names[row])]
    for row in lost:
        problems.add("placeholder_image", names[row])
    return set(lost)


def _outside(images: Dataset, own: Sequence[Path], names: list[str], problems: Problems) -> set[int]:
    """Return the rows whose image names a file that is not the dataset's own, or that does not exist."""
    faults = misplaced(images, "image", own)
    for row, fault in faults.items():
        problems.add("outside_folder" if isinstance(fault, OutsideFolder) else "missing_image", names[row])
    return set(faults)


def _files(texts: list[str | None], folder: Path, problems: Problems) -> tuple[Dataset, set[int]]:
    """Return the image files that paths and addresses name, and the rows whose images cannot be downloaded."""
    fetched = fetch_images(text for text in texts if text and is_address(text))
    paths: list[str | Path | None] = []
    lost = set()
    for row, text in enumerate(texts):
        file, fault = fetched.get(text or "", (None, None))
        if fault is not None:
            problems.add("unfetched_image", f"{text}: {fault}")
            lost.add(row)
        paths.append(file or (located(folder, text) if text else None))
    if lost and len(lost) == len(texts):
        raise UserError(f"No image can be used: {'; '.join(map(str, problems.found()))}.")
    return image_files(paths), lost
