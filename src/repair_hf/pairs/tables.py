"""Read a table whose rows name images and captions: separated values, JSON, JSON Lines or Parquet."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, List, Value

from repair_hf.pairs.problems import Problems
from repair_hf.runtime.files import read_lines
from repair_hf.runtime.options import UserError
from repair_hf.runtime.texts import parse_json

SEPARATED = (".csv", ".tsv", ".txt", ".token")
TABLES = (*SEPARATED, ".jsonl", ".parquet")
SEPARATORS = ",;|\t"
MOST_LINES = 100  # of one caption
FAR_LONGER, LONG = 20, 1000  # than the median of its column, and in letters
IMAGE = re.compile(r"\S+://\S+|.+\.(jpe?g|png|webp|gif|bmp|tiff?|avif)(#\d+)?", re.IGNORECASE)  # an address, a file
_FLICKR8K = re.compile(r"\S+#\d+\t")  # Flickr8k.token.txt begins without a header


def is_table(source: str | Path) -> bool:
    """Return whether a source is a file of one of `TABLES`, or a JSON list."""
    path = Path(source)
    if path.suffix.lower() == ".json" and path.is_file():
        with path.open("rb") as file:
            return file.read(64).lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"[")
    return path.suffix.lower() in TABLES and path.is_file()


def load_table(file: Path, problems: Problems) -> Dataset:
    """Load a table with its values as texts or, where a cell of the column holds a list, as lists of texts.

    Raises:
        UserError: If it cannot be read, or has no row.
    """
    kind, remedy = file.suffix.lower(), "Repair the file, or make it again."
    try:
        if kind == ".parquet":
            return Dataset.from_parquet(str(file))
        lines: Iterator[tuple[int, Any]]
        if kind == ".json":
            lines = enumerate(parse_json(file.read_bytes()), start=1)
        else:
            lines = _separated(file) if kind in SEPARATED else read_lines(file)
        numbered = []
        for number, row in lines:
            if isinstance(row, dict):
                numbered.append((number, row))
            else:
                problems.add("malformed_row", f"line {number}")
        too_long = _too_long([row for _, row in numbered]) if kind in SEPARATED else set()
        for place in sorted(too_long):
            problems.add("too_long_cell", f"line {numbered[place][0]}")
        rows = [row for place, (_, row) in enumerate(numbered) if place not in too_long]
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:300].rstrip(".")
        if "codec can't decode" in reason:
            known = "utf-16" if re.search("0xf[ef] in position 0", reason) else "latin1"
            remedy = f"Save it as UTF-8: `iconv -f {known} -t utf-8 {file.name} > utf8{kind}`."
        raise UserError(f"{file} cannot be read as a table: {reason}. {remedy}") from error
    if not rows:
        form = '{"image": "x.jpg", "captions": ["a dog", "a brown dog"]}'
        raise UserError(f"{file} has no usable row; each needs an image and a caption. In JSON Lines: {form}.")
    names = dict.fromkeys(name for row in rows for name in row if "\0" not in name)  # no name of a column in Arrow
    columns = {name: [row.get(name) for row in rows] for name in names}
    has_lists = {name: any(isinstance(value, list) for value in values) for name, values in columns.items()}
    features = {name: List(Value("string")) if has_lists[name] else Value("string") for name in names}
    made = {name: [(_texts if has_lists[name] else _text)(value) for value in columns[name]] for name in names}
    return Dataset.from_dict(made, features=Features(features))


def _separated(file: Path) -> Iterator[tuple[int, dict[str, str] | None]]:
    """Yield the number of each row's last line, and the row; None for one with too few or too many cells."""
    with file.open(encoding="utf-8-sig", newline="") as text:
        lines = list(text)
    if lines and _FLICKR8K.match(lines[0]):
        lines.insert(0, "image\tcaption\n")
    # the header decides, and a comma comes before others that are as frequent in it
    separator = max(SEPARATORS, key=lines[0].count) if lines else ","
    rows = _cells(lines, separator)
    names = [name.strip() for name in next(rows, (0, []))[1]]
    for number, cells in rows:
        if cells:
            yield number, dict(zip(names, cells, strict=True)) if len(cells) == len(names) else None


def _too_long(rows: list[dict[str, str]]) -> set[int]:
    """Return the rows with a cell that is far longer than those of its column: it may hold other rows."""
    found = set()
    for name in rows[0] if rows else ():
        sizes = [len(row[name]) for row in rows]
        most = max(LONG, FAR_LONGER * median(sizes))
        found |= {place for place, size in enumerate(sizes) if size > most}
    return found


def _cells(lines: list[str], separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of each row's last line, and its cells.

    Many tables are written without quoting. There a caption may begin with a quotation mark, and a usual reader takes
    all rows to the next mark as one caption. So a mark quotes only if it is closed at the end of its cell, and not
    around rows: lines that name images, if its own line does, else lines of equally many cells. In a table that is not
    separated by , or ; it also has to be closed on its line, in all rows.
    """

    def unquoted(line: str) -> list[str]:
        return line.rstrip("\r\n").split(separator)

    def are_rows(lines: list[str]) -> bool:
        named = [any(IMAGE.fullmatch(cell.strip(' "')) for cell in unquoted(line)) for line in lines]
        return named[0] if any(named[1:]) else not named[0] and len({len(unquoted(line)) for line in lines}) == 1

    has_quotes, at = separator in ",;" or _has_quotes(lines, separator), 0
    while at < len(lines):
        used, cells = 1, unquoted(lines[at]) if lines[at].strip() else []
        if has_quotes and '"' in lines[at]:
            block = lines[at : at + MOST_LINES]
            reader = csv.reader(block, delimiter=separator, strict=True)
            try:
                quoted = next(reader)
            except csv.Error:  # also an open mark at the end of the block
                quoted = cells
            if quoted is not cells and (reader.line_num == 1 or not are_rows(block[: reader.line_num])):
                used, cells = reader.line_num, quoted
        at += used
        yield at, cells


def _has_quotes(lines: list[str], separator: str) -> bool:
    """Return whether marks quote: each is closed on its line, and no column has needless ones beside cells without."""
    cell = re.compile(rf'("(?:[^"]|"")*"|[^{re.escape(separator)}]*)(?:{re.escape(separator)}|$)')
    marked, bare = set(), set()  # columns
    for line in lines[1:]:
        try:
            next(csv.reader([line], delimiter=separator, strict=True), None)
        except csv.Error:
            return False
        for column, text in enumerate(cell.findall(line.rstrip("\r\n"))):
            if not text.startswith('"'):
                bare |= {column} if text else set()
            elif separator not in text and '"' not in text[1:-1]:
                marked.add(column)
    return not marked & bare


def _text(value: Any) -> str | None:
    return None if value is None or isinstance(value, dict) else str(value)


def _texts(value: Any) -> list[str | None]:
    return [_text(each) for each in value] if isinstance(value, list) else [_text(value)]
