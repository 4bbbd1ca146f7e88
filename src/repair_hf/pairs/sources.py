"""Read any source: a table, a folder with `captions.jsonl`, a caption JSON, or a dataset.

No image is decoded here. A row that does not fit the format is collected as a problem and raises no error.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.request import url2pathname

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, LargeList, List, Value, concatenate_datasets
from datasets.features.features import require_decoding  # seen with datasets 5.2

from repair_hf.pairs.admission import OutsideFolder, anchored, misplaced, own_folders
from repair_hf.pairs.annotations import load_annotations
from repair_hf.pairs.fetching import fetch_images
from repair_hf.pairs.folders import KINDS, load_pairs_of, loading
from repair_hf.pairs.images import undecoded
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.tables import IMAGE, TABLES, TEXT_FILE, captions_of, in_memory, is_table, load_table, places_of
from repair_hf.runtime.options import PairsOptions, UserError

OF_HUB = ("pairs_config", "pairs_revision")
OF_COLUMNS = ("image_column", "caption_column", "image_id_column", "group", *OF_HUB)
TEXTS = (Value("string"), Value("large_string"), Value("string_view"))
BYTES = (Value("binary"), Value("large_binary"))
ID_COLUMNS = ("image_id", "filename")  # name the images
IMAGES = Features({"image": Image(decode=False)})
MAYBE_IDS = ("cocoid", "id")  # do so where they repeat with the image; else they may number the captions


def read_source(
    options: PairsOptions, data: Dataset | DatasetDict | None, splits: Sequence[str], problems: Problems
) -> tuple[Dataset, pd.DataFrame, pa.Table]:
    """Read the rows of `options.pairs`, or of `data`, a dataset in memory that has this name in messages.

    A dataset with several splits is read only in `splits`, unless groups must be found in all of them. A column
    `split` gives the splits of a dataset that has only one. A lone split named `train` counts as no splits: `datasets`
    uses that name for data without splits.

    Returns:
        images: The column `image`, undecoded.
        rows: `image`, a row in `images`; `name`, of the image; `is_lost`, if the image cannot be used; and, if the
            source has them, `file`, the name of a file in a cell, `split`, `group`, `image_id` and `MAYBE_IDS`.
        captions: `row` and `caption`; null for a caption that is missing.

    Raises:
        UserError: If there is no such source, it is of no known kind, or a column is absent or of a wrong type.
    """
    loaded = _load(options, problems) if data is None else data
    parts = dict(loaded) if isinstance(loaded, DatasetDict) else {"train": loaded}
    wanted = parts
    if splits[0] in parts and options.group is None:
        wanted = {name: parts[name] for name in splits if name in parts}
    is_own = data is not None or Path(options.pairs).exists()
    images, captions = _columns(options, next(iter(wanted.values())).column_names)
    checked = [_checked(part, options, images, captions, is_own) for part in wanted.values()]
    table = checked[0] if len(checked) == 1 else concatenate_datasets(checked)
    sizes = {name: len(part) for name, part in wanted.items()}
    if table.features[images[0]] in TEXTS:
        cells, rows = _named_images(table, images[0], sizes, options, problems)
    else:
        cells, rows = _stored_images(table, images, sizes, options, problems, is_in_memory=data is not None)
    if len(parts) == 1 and "split" in table.features:
        rows["split"] = _texts(table, "split")
    elif [*parts] != ["train"]:
        rows["split"] = pd.Series(np.repeat(np.array([*sizes], object), [*sizes.values()]))
    id_column = options.image_id_column or next((name for name in ID_COLUMNS if name in table.features), None)
    columns = {"group": options.group, "image_id": id_column} | {name: name for name in MAYBE_IDS}
    for name, column in columns.items():
        if column is not None and column in table.features:
            rows[name] = _texts(table, column)
    return cells, rows, captions_of(table, captions, options.pairs)


def _load(options: PairsOptions, problems: Problems) -> Dataset | DatasetDict:
    """Load a table, a caption JSON, or a dataset by its folder or Hub id."""
    source, path = options.pairs, Path(options.pairs)
    table = path / "captions.jsonl" if path.is_dir() else path
    is_json = path.suffix == ".json" and not is_table(path)
    refused, right = (OF_COLUMNS, "a table or a dataset") if is_json else (OF_HUB, "the Hub")
    if is_json or path.exists():
        set_ones = [name for name in refused if getattr(options, name) != getattr(PairsOptions, name)]
        if set_ones:
            named = " and ".join(f"`{name}` {getattr(options, name)}" for name in set_ones)
            raise UserError(f"{named}: only for {right}, and `{source}` is another source. Leave it out.")
    if is_json:
        return load_annotations(path, options.image_folder, problems)
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


def _columns(options: PairsOptions, known: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns of images and of captions.

    Images stand in the named column, or in those of tars, which have one for each kind of file. Captions stand in the
    named columns, or by default in the first of the usual names.
    """
    image, caption = options.image_column, options.caption_column
    kinds = [name for name in KINDS if name in known]
    is_default = image == PairsOptions.image_column and image not in known
    images = kinds if kinds and (image in kinds or is_default) else [image]
    usual = [name for name in ("captions", TEXT_FILE) if name in known]
    if caption in known:
        return images, [caption]
    if caption == PairsOptions.caption_column and usual:
        return images, usual[:1]
    return images, [name.strip() for name in caption.split(",")]


def _checked(
    rows: Dataset, options: PairsOptions, images: Sequence[str], captions: Sequence[str], takes_paths: bool
) -> Dataset:
    """Select the columns of images, captions, ids, groups and splits; bytes and structs of images become images.

    Raises:
        UserError: For the first that is absent or of a wrong type; it names the columns, and the option to set.
    """
    asked: list[tuple[str, str | None]] = [("image_column", name) for name in images]
    asked += [("caption_column", name) for name in captions]
    asked += [("image_id_column", options.image_id_column), ("group", options.group)]
    for option, column in asked:
        if column is not None and column not in rows.features:
            if is_table(options.pairs) and any(map(IMAGE.fullmatch, rows.column_names)):
                remedy = "Write the names of the columns into its first line."
            elif option == "caption_column" and set(rows.column_names) <= {"image", "label"}:
                remedy = "Put a captions.jsonl, or a text of the same name as each image, beside the images."
            else:
                remedy = f"Set `{option}`."
            raise UserError(f"`{options.pairs}` has no column `{column}`; it has {rows.column_names}. {remedy}")
    for name in images:
        kind = rows.features[name]
        if kind in BYTES or isinstance(kind, dict) and {"bytes"} <= set(kind) <= {"bytes", "path"}:
            rows = rows.cast_column(name, Image())
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
    # what decodes would open files
    usual = [name for name in (*ID_COLUMNS, *MAYBE_IDS, "split") if name in rows.features]
    others = [name for name in usual if not require_decoding(rows.features[name])]
    return rows.select_columns(list(dict.fromkeys([*(name for _, name in asked if name), *others])))


def _named_images(
    table: Dataset, column: str, sizes: Mapping[str, int], options: PairsOptions, problems: Problems
) -> tuple[Dataset, pd.DataFrame]:
    """Return the files that a column of paths and addresses names, each once, and the rows.

    The numbers of captions, `x.jpg#0`, are no part of a name if all names end in one.

    Raises:
        UserError: If no address can be downloaded.
    """
    texts = table.with_format("arrow")[column][:].cast(pa.large_string())
    texts = pc.if_else(pc.equal(texts, ""), None, texts)
    if pc.all(pc.match_substring_regex(texts, r"#\d+$")).as_py():
        texts = pc.replace_substring_regex(texts, r"#\d+$", "")
    encoded = texts.combine_chunks().dictionary_encode()
    image = encoded.indices.fill_null(-1).to_numpy().copy()
    names = [
        url2pathname(name.removeprefix("file://")) if name.startswith("file://") else name
        for name in encoded.dictionary.to_pylist()
    ]
    addresses = [name for name in names if "://" in name]
    fetched = fetch_images(addresses) if addresses else {}
    faults = {name: fault for name, (_, fault) in fetched.items() if fault is not None}
    for name, fault in faults.items():
        problems.add("unfetched_image", f"{name}: {fault}")
    if faults and len(faults) == len(names):
        raise UserError(f"No image can be used: {'; '.join(map(str, problems.found()))}.")
    folder = folder_of(options)
    files = [str(fetched[name][0]) if name in fetched else _located(folder, name) for name in names]
    cells: list[dict | None] = [{"bytes": None, "path": file} for file in files]
    if (image < 0).any():  # an absent image for each row without a name
        unnamed = np.flatnonzero(image < 0)
        image[unnamed] = len(names) + np.arange(len(unnamed))
        names += _row_names(sizes, unnamed)
        cells += [None] * len(unnamed)
    rows = pd.DataFrame({"image": image, "name": np.array(names, object)[image]})
    rows["is_lost"] = rows["name"].isin(faults)
    return in_memory(pa.table({"image": cells}, IMAGES.arrow_schema), IMAGES), rows


def _located(folder: Path, name: str) -> str:
    """Return the path of an image in a folder, which is absolute, or in the folder's `images`, if it is there.

    A Mac may have encoded the accents of its name in another form than the table.
    """
    forms = dict.fromkeys([name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD"))])
    paths = [os.path.join(folder, place, form) for place in ("", "images") for form in forms]
    return next(filter(os.path.isfile, paths), paths[0])  # no error for any name


def folder_of(options: PairsOptions) -> Path:
    """Return the folder in which relative paths of images start."""
    source = Path(options.pairs)
    return Path(options.image_folder or (source if source.is_dir() else source.parent)).absolute()


def name_in(folder: Path, name: str) -> str:
    """Return the id of an image that is named by an absolute path: ids are published, and its folder may move."""
    path = Path(name)
    if not path.is_absolute():
        return name
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name


def _stored_images(
    table: Dataset,
    columns: Sequence[str],
    sizes: Mapping[str, int],
    options: PairsOptions,
    problems: Problems,
    *,
    is_in_memory: bool,
) -> tuple[Dataset, pd.DataFrame]:
    """Return the images that a dataset holds, and its rows: the image of each is in the first column that has one.

    A row of a dataset of the Hub may name no file but the dataset's own.
    """
    whole, place = table, np.arange(len(table))
    if is_in_memory:  # without columns that were added to it, to which `datasets` cannot add others
        whole = in_memory(table.data.table, table.features)
        if (places := places_of(table)) is not None:
            place = places
    of_columns = [undecoded(whole, name).rename_columns({name: "image"}) for name in columns]
    has_image = np.array([part.with_format("arrow")["image"][:].is_valid().to_numpy() for part in of_columns])
    images = anchored(concatenate_datasets(of_columns), "image", folder_of(options))
    image = has_image.argmax(0)[place] * len(whole) + place
    paths = pc.struct_field(images.with_format("arrow")["image"][:], "path")
    names, files = _row_names(sizes, np.arange(len(image))), paths.take(pa.array(image)).to_pylist()
    rows = pd.DataFrame({"image": image, "name": np.array(names, object), "file": np.array(files, object)})
    is_own = is_in_memory or Path(options.pairs).exists()
    faults = {} if is_own else misplaced(images, "image", own_folders(options.pairs))
    rows["is_lost"] = rows["image"].isin(list(faults))
    for row, name in rows[rows["is_lost"]][["image", "name"]].itertuples(index=False):
        problems.add("outside_folder" if isinstance(faults[row], OutsideFolder) else "missing_image", name)
    return images, rows


def _row_names(sizes: Mapping[str, int], rows: np.ndarray) -> list[str]:
    """Name rows by their split and their number in it, such as `train-0000012`."""
    names, stops = [*sizes], np.cumsum([0, *sizes.values()])
    part = np.searchsorted(stops, rows, side="right") - 1
    numbers = rows - stops[part]
    return [f"{names[split]}-{number:07d}" for split, number in zip(part, numbers, strict=True)]


def _texts(rows: Dataset, column: str) -> pd.Series:
    """Return a column of ids, groups or splits as strings; empty ones are missing."""
    feature, cells = rows.features[column], rows.with_format("arrow")[column][:]
    if pa.types.is_nested(cells.type):
        cells = pa.chunked_array([[None if cell is None else str(cell) for cell in cells.to_pylist()]])
    if feature in TEXTS or pa.types.is_null(cells.type):
        cells = cells.cast(pa.large_string())
    texts = cells.dictionary_encode().to_pandas()
    texts = texts.cat.rename_categories(feature.int2str if isinstance(feature, ClassLabel) else str)
    return texts.astype(object).replace("", None)
