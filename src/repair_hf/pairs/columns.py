"""The columns of a source: which hold images, captions and ids, whether they can, and what their cells say.

A caption is a string. A cell may hold one, or a list of them, also one that is stored as text. A text file, in the
column `txt`, has a caption on each line. Missing cells and values that are no strings are no captions.
"""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, Image, LargeList, List, Value
from datasets.features.features import require_decoding  # seen with datasets 5.2

from repair_hf.pairs.folders import KINDS
from repair_hf.pairs.tables import IMAGE, TEXT_FILE, is_table
from repair_hf.runtime.options import PairsOptions, UserError

logger = logging.getLogger(__name__)

TEXTS = (Value("string"), Value("large_string"), Value("string_view"))
BYTES = (Value("binary"), Value("large_binary"))
ID_COLUMNS = ("image_id", "filename")  # name the images
MAYBE_IDS = ("cocoid", "id")  # do so where they repeat with the image; else they may number the captions
_NUMBER = re.compile(r"#\d+$")
AT_ONCE = 100_000  # captions copied together
_TEXT = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_ITEM = re.compile(rf"{_TEXT}|None|null|nan|NaN", re.DOTALL)
_LIST = re.compile(rf"\s*(?:array\()?\[\s*(?:(?:{_ITEM.pattern})[\s,]*)*\](?:,\s*dtype=[^)]+)?\)?\s*", re.DOTALL)


def image_columns(named: str, columns: Sequence[str]) -> list[str]:
    """Return the columns of images: the named one, or those of tars, which have one for each kind of file."""
    kinds = [name for name in KINDS if name in columns]
    is_default = named == PairsOptions.image_column and named not in columns
    return kinds if kinds and (named in kinds or is_default) else [named]


def caption_columns(named: str, columns: Sequence[str]) -> list[str]:
    """Return the columns of captions: the named ones, or by default the first usual name."""
    usual = [name for name in ("captions", TEXT_FILE) if name in columns]
    if named in columns:
        return [named]
    if named == PairsOptions.caption_column and usual:
        return usual[:1]
    return [name.strip() for name in named.split(",")]


def needed_columns(
    rows: Dataset, options: PairsOptions, images: Sequence[str], captions: Sequence[str], *, takes_paths: bool
) -> Dataset:
    """Select the columns of images, captions and ids; files of images, as bytes or structs, become images.

    Raises:
        UserError: For the first that is absent or of a wrong type; it names the columns, and the option to set.
    """
    asked: list[tuple[str, str | None]] = [("image_column", name) for name in images]
    asked += [("caption_column", name) for name in captions]
    asked += [("image_id_column", options.image_id_column), ("group", options.group)]
    for option, column in asked:
        if column is not None and column not in rows.features:
            remedy = _remedy(options.pairs, option, rows.column_names)
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


def _remedy(source: str, option: str, columns: Sequence[str]) -> str:
    if is_table(source) and any(map(IMAGE.fullmatch, columns)):
        return "Write the names of the columns into its first line."
    if option == "caption_column" and set(columns) <= {"image", "label"}:
        return "Put a captions.jsonl, or a text of the same name as each image, beside the images."
    return f"Set `{option}`."


def captions_of(rows: Dataset, columns: Sequence[str], number: np.ndarray, source: str) -> list[list[str | None]]:
    """Return the captions of each number, in the order of the rows and of the columns; None for one that is missing.

    Args:
        rows: The rows of a source.
        columns: Its columns of captions: strings, or lists of strings.
        number: The number of each row, (N,), from 0 without gaps.
        source: Its name in messages.
    """
    flat = [_flat(rows.with_format("arrow")[name][:], name, source) for name in columns]
    kind = flat[0][0].type if len(flat) == 1 else pa.large_string()
    texts = pa.chunked_array([chunk for part, _ in flat for chunk in part.cast(kind).chunks], kind)
    row = np.concatenate([of_column for _, of_column in flat])
    # stable: the columns' order decides among the captions of a row, and the rows' order among those of a number
    by_row = np.argsort(row, kind="stable")
    order = by_row[np.argsort(number[row[by_row]], kind="stable")]
    values: list[str | None] = []
    for start in range(0, len(order), AT_ONCE):
        values += texts.take(pa.array(order[start : start + AT_ONCE])).to_pylist()
    stops = np.cumsum(np.bincount(number[row], minlength=number.max(initial=-1) + 1)).tolist()
    return [values[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]


def _flat(column: pa.ChunkedArray, name: str, source: str) -> tuple[pa.ChunkedArray, np.ndarray]:
    """Return all captions of a column, and the row of each, (K,). A missing list is one missing caption."""
    if not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
        if pa.types.is_string_view(column.type):  # not all functions of Arrow take one
            column = column.cast(pa.large_string())
        if name == TEXT_FILE:
            lists = pc.split_pattern_regex(pc.utf8_trim_whitespace(column), r"\s*[\r\n]\s*")
        elif (parsed := _lists_in(column)) is not None:
            logger.info("%s: column `%s` holds lists as text, which are read as lists.", source, name)
            lists = pa.chunked_array([parsed])
        else:
            return column, np.arange(len(column))
    else:
        lists = column
    missing = np.flatnonzero(lists.is_null().to_numpy())
    texts = pc.list_flatten(lists)
    starts = np.cumsum([0, *(len(chunk) for chunk in lists.chunks)])
    rows = [
        pc.list_parent_indices(chunk).to_numpy() + start for chunk, start in zip(lists.chunks, starts, strict=False)
    ]
    texts = pa.chunked_array([*texts.chunks, pa.nulls(len(missing), texts.type)])
    return texts, np.concatenate([*rows, missing]).astype(np.int64)


def _lists_in(column: pa.ChunkedArray) -> pa.Array | None:
    """Parse lists of texts as JSON, Python or NumPy write them; None unless every text is one. Empty ones are none."""
    begins = pc.match_substring_regex(column, r"^\s*(array\()?\[")
    if not pc.all(pc.or_(begins, pc.equal(column, ""))).as_py() or not pc.any(begins).as_py():
        return None
    texts = column.to_pylist()
    if not all(_LIST.fullmatch(text) for text in texts if text):
        return None
    lists = [[_value(item) for item in _ITEM.findall(text)] if text else None for text in texts]
    return pa.array(lists, pa.list_(pa.string()))


def _value(literal: str) -> str | None:
    if literal[0] not in "'\"":
        return None
    try:  # Python's texts have other escapes
        return json.loads(literal, strict=False)
    except ValueError:
        return ast.literal_eval(literal)


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


def _repeats_with(names: list[str | None], cells: list[int]) -> bool:
    """Return whether some name repeats, and every image has a name of its own."""
    both = len(set(zip(names, cells, strict=True)))
    return both < len(names) and both == len(set(names)) == len(set(cells))


def plain_texts(rows: Dataset, column: str) -> list[str | None]:
    """Return a column of strings, class labels or other values as strings."""
    feature, values = rows.features[column], rows[column][:]
    name = feature.int2str if isinstance(feature, ClassLabel) else str
    return values if feature in TEXTS else [None if value is None else name(value) for value in values]


def encoded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[Any]]:
    """Number the cells of a column, (N,), -1 for null; return the value of each number, too."""
    if pa.types.is_nested(column.type):
        return np.arange(len(column)), []
    is_text = pa.types.is_string(column.type) or pa.types.is_string_view(column.type)
    cells = column.cast(pa.large_string()) if is_text else column  # in one piece it may be above 2 GB
    dictionary = cells.combine_chunks().dictionary_encode()
    return dictionary.indices.fill_null(-1).to_numpy(), dictionary.dictionary.to_pylist()


def without_numbers(names: Sequence[str | None]) -> list[str | None]:
    """Drop the numbers of captions, `x.jpg#0`, from the names of images, if all names end in one."""
    there = [name for name in names if name]
    if not there or not all(map(_NUMBER.search, there)):
        return list(names)
    return [_NUMBER.sub("", name) if name else name for name in names]
