"""Write a dataset as Parquet files with its images inside."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset, Image

from repair_hf.pairs.images import read_cell
from repair_hf.runtime.options import UserError

_ROWS_PER_GROUP = 100  # few enough that a reader of one row does not decompress a thousand images
_BYTES_PER_FILE = 400 * 2**20


def write_parquet(folder: Path, dataset: Dataset, left_out: Sequence[str] = ()) -> str:
    """Add shards to a folder and return the pattern of their names.

    The names hold a digest of the content: `load_dataset` caches a folder by its file names, so new rows under old
    names would not be seen.
    """
    folder.mkdir(parents=True, exist_ok=True)
    schema = dataset.features.arrow_schema
    drafts = [folder / ".00000.tmp"]
    writer = pq.ParquetWriter(drafts[0], schema)
    for table in dataset.with_format("arrow").iter(_ROWS_PER_GROUP):
        for name in left_out:
            nothing = pa.nulls(len(table), schema.field(name).type)
            table = table.set_column(table.column_names.index(name), name, nothing)
        if drafts[-1].stat().st_size > _BYTES_PER_FILE:
            writer.close()
            drafts.append(folder / f".{len(drafts):05d}.tmp")
            writer = pq.ParquetWriter(drafts[-1], schema)
        for name in (name for name, kind in dataset.features.items() if isinstance(kind, Image)):
            table = table.set_column(table.column_names.index(name), name, _embedded(table[name], schema.field(name)))
        writer.write_table(table.cast(schema), row_group_size=_ROWS_PER_GROUP)
    writer.close()
    name = hashlib.sha256(b"".join(map(_file_digest, drafts))).hexdigest()[:8]
    for shard, draft in enumerate(drafts):
        draft.replace(folder / f"train-{shard:05d}-{name}.parquet")
    return f"train-*-{name}.parquet"


def _embedded(column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """Put files in place of their paths. `datasets` would also fetch addresses, or write this machine's paths."""
    cells = column.to_pylist()
    for place, cell in enumerate(cells):
        if cell is not None:
            try:
                cells[place] = {"bytes": read_cell(cell), "path": os.path.basename(cell["path"] or "") or None}
            except OSError as error:
                raise UserError(f"An image of `{field.name}` cannot be read: {error}.") from error
    return pa.array(cells, type=field.type)


def _file_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
