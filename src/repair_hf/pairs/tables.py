"""Read a table whose rows name images and captions: CSV, TSV, JSON Lines or Parquet."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, List, Value

from repair_hf.pairs.problems import Problems
from repair_hf.runtime.files import read_lines
from repair_hf.runtime.options import UserError

SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLES = (*SEPARATORS, ".jsonl", ".parquet")


def is_table(source: str | Path) -> bool:
    """Return whether a source is a file of one of `TABLES`."""
    path = Path(source)
    return path.suffix.lower() in TABLES and path.is_file()


def load_table(file: Path, problems: Problems) -> Dataset:
    """Load a table with its values as texts or, where a cell of the column holds a list, as lists of texts.

    Raises:
        UserError: If it cannot be read, or has no row.
    """
    kind = file.suffix.lower()
    try:
        if kind == ".parquet":
            return Dataset.from_parquet(str(file))
        lines = _separated(file, SEPARATORS[kind]) if kind in SEPARATORS else read_lines(file)
        rows = []
        for number, row in lines:
            if isinstance(row, dict):
                rows.append(row)
            else:
                problems.add("malformed_row", f"line {number}")
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:  # ValueError: text in no UTF-8
        reason = " ".join(str(error).split())[:300].rstrip(".")
        raise UserError(f"{file} cannot be read as a table: {reason}. Repair the file, or make it again.") from error
    if not rows:
        form = '{"image": "x.jpg", "captions": ["a dog", "a brown dog"]}'
        raise UserError(f"{file} has no usable row; each needs an image and a caption. In JSON Lines: {form}.")
    names = dict.fromkeys(name for row in rows for name in row if "\0" not in name)  # no name of a column in Arrow
    columns = {name: [row.get(name) for row in rows] for name in names}
    has_lists = {name: any(isinstance(value, list) for value in values) for name, values in columns.items()}
    features = {name: List(Value("string")) if has_lists[name] else Value("string") for name in names}
    made = {name: [(_texts if has_lists[name] else _text)(value) for value in columns[name]] for name in names}
    return Dataset.from_dict(made, features=Features(features))


def _separated(file: Path, separator: str) -> Iterator[tuple[int, dict[str, str] | None]]:
    """Yield the number of each row's last line, and the row; None for one with too few or too many cells."""
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, delimiter=separator)
        for row in reader:
            yield reader.line_num, None if None in row or None in row.values() else row


def _text(value: Any) -> str | None:
    return None if value is None or isinstance(value, dict) else str(value)


def _texts(value: Any) -> list[str | None]:
    return [_text(each) for each in value] if isinstance(value, list) else [_text(value)]
