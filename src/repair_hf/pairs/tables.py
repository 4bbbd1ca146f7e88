"""Read a table, and the captions in its cells: separated values, JSON, JSON Lines or Parquet."""

from __future__ import annotations

import ast
import csv
import json
import logging
import re
import secrets
from collections.abc import Iterator, Sequence
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from datasets import Dataset, DatasetInfo, Features
from datasets.formatting import query_table

from repair_hf.pairs.problems import Problems
from repair_hf.runtime.files import read_lines
from repair_hf.runtime.options import UserError
from repair_hf.runtime.texts import parse_json

logger = logging.getLogger(__name__)

SEPARATED = (".csv", ".tsv", ".txt", ".token")
TABLES = (*SEPARATED, ".jsonl", ".parquet")
SEPARATORS = ",;|\t"
QUOTING = ",;"  # tables with these separators quote cells as RFC 4180 says; others have no quotation marks
CELLS_PER_READ = 256
TEXT_FILE = "txt"  # the column of what text files hold
ENDINGS = r"\.(?:jpe?g|png|webp|gif|bmp|tiff?|avif)(?:#\d+)?"
IMAGE = re.compile(rf"\S+://\S+|.+{ENDINGS}", re.IGNORECASE)  # an address, a file
_TEXT = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_ITEM = re.compile(rf"{_TEXT}|None|null|nan|NaN", re.DOTALL)
_BEGIN = r"^\s*(array\()?\["
_LIST = re.compile(rf"\s*(?:array\()?\[\s*(?:(?:{_ITEM.pattern})[\s,]*)*\](?:,\s*dtype=[^)]+)?\)?\s*", re.DOTALL)
_FLICKR8K = re.compile(r"\S+#\d+\t")  # Flickr8k.token.txt begins without a header


def is_table(source: str | Path) -> bool:
    """Return whether a source is a file of one of `TABLES`, or a JSON list."""
    path = Path(source)
    if path.suffix.lower() == ".json" and path.is_file():
        with path.open("rb") as file:
            return file.read(64).lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"[")
    return path.suffix.lower() in TABLES and path.is_file()


def load_table(file: Path, problems: Problems) -> Dataset:
    """Load a table. Separated values are strings; columns of one name become one column of lists.

    A line of JSON that is no object is left out and reported.

    Raises:
        UserError: If it cannot be read, a line does not fit the header, or there is no row.
    """
    kind, remedy = file.suffix.lower(), "Repair the file, or make it again."
    try:
        if kind == ".parquet":
            rows = Dataset.from_parquet(escape(str(file.absolute()))) if pq.read_metadata(file).num_rows else []
        elif kind in SEPARATED:
            rows = in_memory(_read_separated(file))
        else:
            lines = enumerate(parse_json(file.read_bytes()), start=1) if kind == ".json" else read_lines(file)
            rows = _from_objects(lines, problems)
    except (OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, UserError):
            raise
        reason = " ".join(str(error).split())[:300].rstrip(".")
        if "codec can't decode" in reason or "invalid UTF8" in reason:
            with file.open("rb") as content:
                known = "utf-16" if content.read(2) in (b"\xff\xfe", b"\xfe\xff") else "latin1"
            remedy = f"Save it as UTF-8: `iconv -f {known} -t utf-8 {file.name} > utf8{kind}`."
        raise UserError(f"{file} cannot be read as a table: {reason}. {remedy}") from error
    if not len(rows):
        form = '{"image": "x.jpg", "captions": ["a dog", "a brown dog"]}'
        raise UserError(f"{file} has no usable row; each needs an image and a caption. In JSON Lines: {form}.")
    return rows


def in_memory(table: pa.Table, features: Features | None = None) -> Dataset:
    """Make a dataset of a table, without the fingerprint for which `datasets` would copy and hash it."""
    return Dataset(table, DatasetInfo(features=features), fingerprint=secrets.token_hex(8))


def cells_of(rows: Dataset, column: str) -> Iterator[pa.ChunkedArray]:
    """Yield the cells of a column, some at a time: nothing is decoded, and without a selection nothing is copied.

    `with_format` would first copy and hash the description of the dataset.
    """
    table, places = rows.data.select([column]), places_of(rows)
    for start in range(0, len(rows), CELLS_PER_READ):
        part = slice(start, start + CELLS_PER_READ)
        yield query_table(table, part if places is None else places[part])[column]


def places_of(rows: Dataset) -> np.ndarray | None:
    """Return the row of a dataset's table for each row of a selection, (N,) int64; None if all were taken."""
    if rows._indices is None:  # Nothing public gives them. Seen with datasets 5.2.
        return None
    return rows._indices.column(0).to_numpy().astype(np.int64)


def _read_separated(file: Path) -> pa.Table:
    """Read separated values; the header decides about the separator, and a comma comes before others as frequent."""
    with file.open(encoding="utf-8-sig", newline="") as text:
        header = text.readline()
    has_header = _FLICKR8K.match(header) is None
    header = header if has_header else "image\tcaption"
    separator = max(SEPARATORS, key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=separator), [])]
    has_quotes = separator in QUOTING
    try:
        table = pyarrow.csv.read_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(column_names=names, skip_rows=int(has_header)),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=separator, quote_char='"' if has_quotes else False, newlines_in_values=has_quotes
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid:
        if bad := _misfit(file, names, separator):
            line, count = bad
            remedy = (
                f"Enclose each cell that holds `{separator}` in quotation marks, or write the table with tabs."
                if has_quotes
                else f"Remove {separator!r} from its cells, or write the table with commas and quotation marks."
            )
            heads = f"{len(names)} ({', '.join(names)})"
            raise UserError(f"{file}, line {line} has {count} cells, and the header has {heads}. {remedy}") from None
        raise
    _check_quotes(table, file, separator)
    return table if len(set(names)) == len(names) else _joined(table, names)


def _misfit(file: Path, names: Sequence[str], separator: str) -> tuple[int, int] | None:
    """Return the number and the count of cells of the first line that does not fit the header."""
    with file.open(encoding="utf-8-sig", newline="") as text:
        has_quotes = separator in QUOTING
        reader = csv.reader(text, delimiter=separator, quoting=csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE)
        line = 1
        for row in reader:
            if row and len(row) != len(names):
                return line, len(row)
            line = reader.line_num + 1
    return None


def _check_quotes(table: pa.Table, file: Path, separator: str) -> None:
    """Raise an error if a mark encloses other rows, or if a table that takes no quotation marks is quoted."""
    if separator in QUOTING:  # a later line of the cell holds the name of an image
        pattern = rf"(?i)\n(?:[^\n]*{separator})?[^\n{separator}]*{ENDINGS}[\"\s]*(?:{separator}|\n|$)"
        fault = "a quotation mark that encloses other rows"
        remedy = "Enclose this caption in marks and double its own, or write the table with tabs."
    else:
        pattern = r'^"(?:[^"]|"")*""(?:[^"]|"")*"$'
        fault = f"a cell in quotation marks, which a table with {separator!r} takes for a part of the caption"
        remedy = "Write the table with commas."
    for column in table.columns:
        if (place := pc.index(pc.match_substring_regex(column, pattern), True).as_py()) >= 0:
            cell = column[place].as_py().splitlines()[0][:60]
            raise UserError(f"{file}, row {place + 1} has {fault}: {cell!r}. {remedy}")


def _joined(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return a table whose columns of one name are one column of lists; columns without a name are left out."""
    columns = {}
    for name in dict.fromkeys(filter(None, names)):
        parts = [column for column, other in zip(table.columns, names, strict=True) if other == name]
        if len(parts) == 1:
            columns[name] = parts[0]
            continue
        cells = pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.string())
        by_row = np.arange(len(cells)).reshape(len(parts), -1).T.ravel()
        offsets = np.arange(0, len(cells) + 1, len(parts), dtype=np.int32)
        columns[name] = pa.ListArray.from_arrays(offsets, cells.take(by_row).combine_chunks())
    return pa.table(columns)


def _from_objects(lines: Iterator[tuple[int, Any]], problems: Problems) -> Dataset:
    """Make rows of JSON objects; anything else is left out."""
    objects = []
    for number, row in lines:
        if isinstance(row, dict):
            objects.append(row)
        else:
            problems.add("malformed_row", f"line {number}")
    names = dict.fromkeys(name for row in objects for name in row if "\0" not in name)  # no name of a column in Arrow
    return in_memory(pa.table({name: _column([row.get(name) for row in objects]) for name in names}))


def _column(values: list[Any]) -> pa.Array:
    """Make a column of values of JSON: of lists of strings or of strings, if it holds one, or else of numbers."""
    if any(isinstance(value, list) for value in values):
        lists = [value if isinstance(value, list) else [value] for value in values]
        texts = [[text if isinstance(text, str) else None for text in texts] for texts in lists]
        return pa.array(texts, pa.list_(pa.string()))
    if any(isinstance(value, str) for value in values):
        return pa.array([value if isinstance(value, str) else None for value in values], pa.string())
    try:
        return pa.array([None if isinstance(value, dict) else value for value in values])
    except (pa.ArrowException, OverflowError):  # numbers of several kinds, or above 64 bits
        return pa.array([None if value is None else str(value) for value in values])


def captions_of(rows: Dataset, columns: Sequence[str], source: str) -> pa.Table:
    """Return the captions in some columns: `row` and `caption`. Those of a row are in the order of the columns.

    A caption is a string. A cell may hold one, or a list of them, also one that is stored as text. A text file, in the
    column `TEXT_FILE`, has a caption on each line. One that is missing, empty or no string is null.

    Args:
        rows: The rows of a source.
        columns: Its columns of strings, or of lists of strings.
        source: Its name in messages.
    """
    texts: list[pa.Array] = []
    of_row = [np.empty(0, np.int64)]
    for name in columns:
        cells = rows.with_format("arrow")[name][:]
        if not pa.types.is_list(cells.type) and not pa.types.is_large_list(cells.type):
            cells = cells.cast(pa.large_string())
            if name == TEXT_FILE:
                cells = pc.split_pattern_regex(pc.utf8_trim_whitespace(cells), r"\s*[\r\n]\s*")
            elif pc.any(pc.match_substring_regex(cells, _BEGIN)).as_py():
                cells = _lists_in(cells, name, source)
        if pa.types.is_large_string(cells.type):
            texts += cells.chunks
            of_row.append(np.arange(len(cells)))
            continue
        starts = np.cumsum([0, *(len(chunk) for chunk in cells.chunks)])
        for chunk, start in zip(cells.chunks, starts, strict=False):
            missing = np.flatnonzero(chunk.is_null().to_numpy(zero_copy_only=False))  # one missing caption
            texts += [pc.list_flatten(chunk).cast(pa.large_string()), pa.nulls(len(missing), pa.large_string())]
            of_row += [pc.list_parent_indices(chunk).to_numpy() + start, missing + start]
    captions = pc.utf8_trim_whitespace(pa.chunked_array(texts, pa.large_string()))
    captions = pc.if_else(pc.equal(captions, ""), None, captions)
    return pa.table({"row": np.concatenate(of_row), "caption": captions})


def _lists_in(texts: pa.ChunkedArray, name: str, source: str) -> pa.ChunkedArray:
    """Return the lists of a column in which every text that is not empty is one; otherwise the texts."""
    values = texts.to_pylist()
    if not all(_LIST.fullmatch(value) for value in values if value):
        return texts
    logger.info("%s: column `%s` holds lists as text, which are read as lists.", source, name)
    lists = [[_value(item) for item in _ITEM.findall(value)] if value else None for value in values]
    return pa.chunked_array([lists], pa.list_(pa.string()))


def _value(literal: str) -> str | None:
    if literal[0] not in "'\"":
        return None
    try:  # Python's texts have other escapes
        return json.loads(literal, strict=False)
    except ValueError:
        return ast.literal_eval(literal)
