"""Read the rows of any source: a table, a folder with `captions.jsonl`, a caption JSON, or a dataset.

No image is decoded here. A row that does not fit the format is collected as a problem and raises no error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import (
    Dataset,
    DatasetDict,
    DatasetInfo,
    Image,
    LargeList,
    List,
    concatenate_datasets,
)
from datasets.exceptions import DatasetsError
from datasets.features.features import require_decoding  # seen with datasets 5.2
from yaml import YAMLError

from repair_hf.pairs.annotations import read_annotations
from repair_hf.pairs.cells import OutsideFolder, anchored, equal_cells, misplaced, own_folders, undecoded
from repair_hf.pairs.fetching import fetch_images, is_address
from repair_hf.pairs.folders import KINDS, load_pairs_of
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.rows import (
    BYTES,
    ID_COLUMNS,
    MAYBE_IDS,
    TEXTS,
    Listing,
    Row,
    image_files,
    image_ids,
    located,
    name_in,
    plain_texts,
)  # fmt: skip
from repair_hf.pairs.tables import IMAGE, TABLES, is_table, load_table
from repair_hf.pairs.wording import lists_in, without_numbers
from repair_hf.runtime.options import PairsOptions, UserError

logger = logging.getLogger(__name__)

# What `datasets` raises: no such data, no network, a damaged file, a header of README.md that is no YAML, ...
UNLOADABLE = (OSError, ValueError, RuntimeError, LookupError, TypeError, AttributeError, YAMLError, DatasetsError)
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
    if data is None and path.suffix == ".json" and not is_table(path):
        _refuse(options, OF_COLUMNS, "a table or a dataset")
        return _read_annotations(path, options, problems)
    is_here = data is not None or path.exists()
    if is_here:
        _refuse(options, OF_HUB, "the Hub")
    parts = _load_parts(options, data, problems)
    folder = Path.cwd() if data is not None else path if path.is_dir() else path.parent
    return _list_rows(parts, options, splits, problems, folder, None if is_here else own_folders(options.pairs))


def _refuse(options: PairsOptions, names: Sequence[str], right: str) -> None:
    """Raise an error if an option of another kind of source is set."""
    set_ones = [name for name in names if getattr(options, name) != getattr(PairsOptions, name)]
    if set_ones:
        named = " and ".join(f"`{name}` {getattr(options, name)}" for name in set_ones)
        raise UserError(f"{named}: only for {right}, and `{options.pairs}` is another source. Leave it out.")


def _read_annotations(file: Path, options: PairsOptions, problems: Problems) -> Listing:
    if not file.is_file():
        raise UserError(f"`{file}` does not exist; give the path of a caption JSON, COCO's or Karpathy's.")
    if options.image_folder is None or not Path(options.image_folder).is_dir():
        raise UserError(f"`image_folder` must be the folder of the images in {file}, got {options.image_folder}.")
    return read_annotations(file, Path(options.image_folder), problems)


def _load_parts(options: PairsOptions, data: Dataset | DatasetDict | None, problems: Problems) -> dict[str, Dataset]:
    """Load a table or a dataset by split."""
    if data is None:
        path = Path(options.pairs)
        table = path / "captions.jsonl" if path.is_dir() else path
        return _by_split(load_table(table, problems) if is_table(table) else _load_dataset(options, problems))
    # in one piece: `datasets` cannot add a column where others were added before and are not selected
    return {name: _in_one_piece(part) for name, part in _by_split(data).items()}


def _load_dataset(options: PairsOptions, problems: Problems) -> Dataset | DatasetDict:
    source, path = options.pairs, Path(options.pairs)
    if path.is_dir() and (inner := sorted(path.glob("*/captions.jsonl"))) and not any(map(is_table, path.iterdir())):
        raise UserError(f"`{source}` has no captions.jsonl, but a folder in it has: give {inner[0].parent}.")
    if path.is_file() and path.suffix != ".tar":
        raise UserError(
            f"`{source}` is a file; only tables ({', '.join(TABLES)}), .json and .tar are read as one. Give one of "
            "these, or the folder of a dataset."
        )
    try:
        return load_pairs_of(options, problems)
    except UserError:
        raise
    except UNLOADABLE as error:
        here = "" if path.exists() else "is not a local file or folder, and "
        reason = " ".join(str(error).split())[:400].rstrip(".")
        raise UserError(
            f"`{source}` {here}cannot be loaded as a dataset: {reason}. Give a folder with captions.jsonl, a "
            "table, a COCO caption JSON, or the Hub id or folder of a dataset."
        ) from error


def _by_split(data: Dataset | DatasetDict) -> dict[str, Dataset]:
    return dict(data) if isinstance(data, DatasetDict) else {"train": data}


def _in_one_piece(data: Dataset) -> Dataset:
    # Without a fingerprint `datasets` would hash all images; `cast` would map them in memory. Nothing public gives
    # the fingerprint, or the rows of a selection. Seen with datasets 5.2.
    whole = Dataset(data.data.table, info=DatasetInfo(features=data.features), fingerprint=data._fingerprint)
    return whole if data._indices is None else whole.select(data._indices.column(0).to_numpy())


def _with_images(rows: Dataset, columns: Sequence[str]) -> Dataset:
    """Let columns of image files, as bytes or as structs of bytes and path, be columns of images."""
    for column in columns:
        kind = rows.features.get(column)
        if kind in BYTES or isinstance(kind, dict) and {"bytes"} <= set(kind) <= {"bytes", "path"}:
            rows = rows.cast_column(column, Image())
    return rows


def _images(rows: Dataset, columns: Sequence[str]) -> Dataset:
    """Return the image of each row, undecoded: that of the first of some columns which holds one."""
    of_columns = [undecoded(rows, name).rename_columns({name: "image"}) for name in columns]
    has = np.array([each.with_format("arrow")["image"][:].is_valid().to_numpy() for each in of_columns])
    images = concatenate_datasets(of_columns)
    return images if len(columns) == 1 else images.select(has.argmax(0) * len(rows) + np.arange(len(rows)))


def _list_rows(
    parts: dict[str, Dataset],
    options: PairsOptions,
    splits: Sequence[str],
    problems: Problems,
    folder: Path,
    own: Sequence[Path] | None = None,
) -> Listing:
    """List the rows of the splits `parts` of a table or dataset.

    A row without an id is named by its path or address, or else by its split and number. A column `split` gives the
    splits of a dataset that has only one. A lone split named `train` counts as no splits: `datasets` uses that name
    for data without splits.

    Relative paths start in `folder`, texts in `options.image_folder` if that is set. `own` are the folders that hold
    the files of a dataset of the Hub, and None for the user's own data, which may name any file.
    """
    wanted = parts
    if splits[0] in parts and len(parts) > 1 and options.group is None:
        wanted = {name: parts[name] for name in splits if name in parts}
    known = next(iter(wanted.values())).column_names
    columns, captions = _image_columns(options.image_column, known), _caption_columns(options.caption_column, known)
    wanted = {name: _with_images(part, columns) for name, part in wanted.items()}
    for part in wanted.values():
        _check_columns(part, options, columns, captions, takes_paths=own is None)
    needed = [name for name in (*columns, *captions, options.image_id_column, options.group) if name]
    rows = concatenate_datasets([part.select_columns(_with_ids(part, needed)) for part in wanted.values()])
    names = [f"{name}-{row:07d}" for name, part in wanted.items() for row in range(len(part))]
    lone = list(parts) == ["train"]
    of_rows = [None if lone else name for name, part in wanted.items() for _ in range(len(part))]
    of_rows = plain_texts(rows, "split") if len(parts) == 1 and "split" in rows.features else of_rows
    start = Path(options.image_folder or folder).absolute()
    if rows.features[columns[0]] in TEXTS:
        texts = without_numbers(rows[columns[0]][:])
        names = [text or name for text, name in zip(texts, names, strict=True)]
        images, lost = _files(texts, start, problems)
    else:
        images = _images(anchored(rows, columns, folder), columns)
        lost = set() if own is None else _outside(images, own, names, problems)
    cells = equal_cells(images, "image")
    ids = image_ids(rows.remove_columns(columns), options.image_id_column, names, cells)
    ids = [name_in(start, image_id) for image_id in ids]
    groups = [None] * len(rows) if options.group is None else plain_texts(rows, options.group)
    listed = map(Row, range(len(rows)), ids, cells, _captions(rows, captions, options.pairs), of_rows, groups)
    return Listing(images, [row for row in listed if row.image not in lost])


def _image_columns(named: str, found: Sequence[str]) -> list[str]:
    kinds = [name for name in KINDS if name in found]
    return (
        kinds if kinds and (named in kinds or named == PairsOptions.image_column and named not in found) else [named]
    )


def _caption_columns(named: str, found: Sequence[str]) -> list[str]:
    usual = [name for name in ("captions", "txt") if name in found]
    if named == PairsOptions.caption_column and named not in found and usual:
        return usual[:1]
    return [named] if named in found else _named(named)


def _named(columns: str) -> list[str]:
    return [name.strip() for name in columns.split(",")]


def _check_columns(
    rows: Dataset, options: PairsOptions, images: Sequence[str], captions: Sequence[str], *, takes_paths: bool
) -> None:
    asked: list[tuple[str, str | None]] = [("image_column", name) for name in images]
    asked += [("caption_column", name) for name in captions]
    asked += [("image_id_column", options.image_id_column), ("group", options.group)]
    for option, column in asked:
        if column is not None and column not in rows.features:
            remedy = _remedy(options.pairs, option, rows.column_names)
            raise UserError(f"`{options.pairs}` has no column `{column}`; it has {rows.column_names}. {remedy}")
    image = rows.features[images[0]]
    if not isinstance(image, Image) and not (image in TEXTS and takes_paths):
        raise UserError(
            f"Column `{images[0]}` of `{options.pairs}` holds {image}; it must hold image files: their "
            "bytes, paths, or `datasets.Image()`. Set `image_column` to such a column."
        )
    for name in captions:
        caption = rows.features[name]
        inner = caption.feature if isinstance(caption, List | LargeList) else caption
        if inner not in TEXTS:
            raise UserError(
                f"Column `{name}` of `{options.pairs}` holds {caption}; it must hold a string or a list of strings."
            )


def _remedy(source: str, option: str, columns: Sequence[str]) -> str:
    if is_table(source) and any(map(IMAGE.fullmatch, columns)):
        return "Write the names of the columns into its first line."
    if option == "caption_column" and set(columns) <= {"image", "label"}:
        return "Put a captions.jsonl, or a text of the same name as each image, beside the images."
    return f"Set `{option}`."


def _with_ids(rows: Dataset, needed: Sequence[str]) -> list[str]:
    others = [name for name in (*ID_COLUMNS, *MAYBE_IDS, "split") if name in rows.features]
    # what decodes would open files
    return list(dict.fromkeys((*needed, *(name for name in others if not require_decoding(rows.features[name])))))


def _outside(images: Dataset, own: Sequence[Path], names: list[str], problems: Problems) -> set[int]:
    """Return the rows whose image names a file that is not the dataset's own, or that does not exist."""
    faults = misplaced(images, "image", own)
    for row, fault in faults.items():
        problems.add("outside_folder" if isinstance(fault, OutsideFolder) else "missing_image", names[row])
    return set(faults)


def _files(texts: list[str | None], folder: Path, problems: Problems) -> tuple[Dataset, set[int]]:
    """Return the image files that paths and addresses name, and the rows whose images cannot be downloaded."""
    fetched = fetch_images(text for text in texts if text and is_address(text))
    paths: list[Path | None] = []
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


def _captions(rows: Dataset, columns: Sequence[str], source: str) -> Iterator[list[Any]]:
    """Yield the captions of each row, of all columns."""
    found = []
    for name in columns:
        texts: list[Any] = rows[name][:]
        if rows.features[name] in TEXTS:
            lists = lists_in(texts)
            if lists is not None:
                logger.info("%s: column `%s` holds lists as text, which are read as lists.", source, name)
            texts = lists or [[text] for text in texts]
        found.append(texts)
    return (
        [text for some in of_row for text in ([None] if some is None else some)] for of_row in zip(*found, strict=True)
    )
