"""Result tables as Parquet files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from repair_hf.runtime.files import read_table
from repair_hf.runtime.options import UserError


def save_table(table: pa.Table, path: Path) -> None:
    """Write a table, atomically."""
    draft = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, draft)
    draft.replace(path)


def load_table(path: Path, which: str, needs: Iterable[str]) -> pa.Table:
    """Read a table with the columns `needs`; a missing file is an error that says which folder to give."""
    if not path.is_file():
        raise UserError(f"{path.parent} holds no {path.name}; give the folder {which}.")
    return read_table(path, needs=needs)
