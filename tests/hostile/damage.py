"""What damages a copy of a good folder, and addresses that nobody may ask."""

from __future__ import annotations

import json
import secrets
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Damage = Callable[[Path], Any]
LISTENER = socket.create_server(("127.0.0.1", 0))
ADDRESS = f"://127.0.0.1:{LISTENER.getsockname()[1]}/x.png"
DEEP = b"[" * 20_000
ODD = {"image": "odd.png", "captions": ["an odd one"]}


def png(width: int, height: int, n_rows: int, *, cut: bool = False) -> bytes:
    """A grey PNG of fewer rows than its header announces; `cut` takes half of its data too. Checksums are right."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + bytes(row * row * k % 251 for k in range(width)) for row in range(n_rows)))
    data = data[: len(data) // 2] if cut else data
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def line(content: Any) -> Damage:
    """Add a line to captions.jsonl."""
    content = content if isinstance(content, bytes) else json.dumps(content).encode()

    def damage(folder: Path) -> None:
        with (folder / "captions.jsonl").open("ab") as file:
            file.write(content + b"\n")

    return damage


def picture(content: bytes | Callable[[Path], Any]) -> Damage:
    """Add a line to captions.jsonl and its picture, `odd.png`."""

    def damage(folder: Path) -> None:
        (folder / "odd.png").write_bytes(content) if isinstance(content, bytes) else content(folder / "odd.png")
        line(ODD)(folder)

    return damage


def whole(name: str, content: bytes) -> Damage:
    """Replace a file."""
    return lambda folder: table_in(folder, name).write_bytes(content)


def coco(images: Any = (), captions: Any = ()) -> Damage:
    """Write coco.json with more images and captions than captions.jsonl has."""

    def damage(folder: Path) -> None:
        rows = [json.loads(row) for row in (folder / "captions.jsonl").read_text().splitlines()]
        listed = [{"id": key, "file_name": row["image"]} for key, row in enumerate(rows)] + list(images)
        texts = [{"image_id": key, "caption": text} for key, row in enumerate(rows) for text in row["captions"]]
        texts = [{"id": number, **text} for number, text in enumerate(texts)] + list(captions)
        (folder / "coco.json").write_text(json.dumps({"images": listed, "annotations": texts}))

    return damage


def cells(column: str, values: list[Any]) -> Damage:
    """Put cells into the first rows of a folder of records."""

    def change(table: pa.Table) -> pa.Table:
        field = table.field(column)
        cells = pa.array([*values, *table[column].to_pylist()[len(values) :]], field.type)
        return table.set_column(table.column_names.index(column), field, cells)

    return records_table(change)


def records_table(change: Callable[[pa.Table], pa.Table]) -> Damage:
    """Change the table of a folder of records."""
    return lambda folder: rewrite(table_in(folder, "records"), change)


def column(file: str, name: str, value: Any = None) -> Damage:
    """Give each cell of a column of a table, `file` or the first one in this folder, a value; None removes it."""

    def change(table: pa.Table) -> pa.Table:
        place = table.column_names.index(name)
        if value is None:
            return table.remove_column(place)
        return table.set_column(place, name, pa.array([value] * len(table)))

    return lambda folder: rewrite(table_in(folder, file), change)


def table_in(folder: Path, file: str) -> Path:
    """Return the path of a table, or of the first one in a folder of tables."""
    path = folder / file
    return next(path.glob("*.parquet")) if path.is_dir() else path


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a table, and the digest in its name if it has one: `datasets` caches by names."""
    pq.write_table(change(pq.read_table(path)), path)
    card, old, new = path.parents[1] / "README.md", path.stem.split("-")[-1], secrets.token_hex(4)
    if card.is_file():
        card.write_text(card.read_text().replace(old, new))
        path.rename(path.with_name(path.name.replace(old, new)))
