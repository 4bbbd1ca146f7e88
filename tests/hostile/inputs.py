"""Hostile inputs by name: what damages a copy of a good folder, and what a command must say about it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from repair_hf.pairs.problems import KINDS

Damage = Callable[[Path], Any]
LISTENER = socket.create_server(("127.0.0.1", 0))  # nobody may ask it for anything
ADDRESS = f"://127.0.0.1:{LISTENER.getsockname()[1]}/x.png"
DEEP = b"[" * 100_000
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
    return lambda folder: (folder / name).write_bytes(content)


def leads_to(path: str) -> Damage:
    return line(ODD | {"image": path})


def to_secret(path: Path) -> None:
    path.symlink_to(path.parents[1] / "secret.png")


MALFORMED, UNFETCHED, MISSING = KINDS["malformed_row"], KINDS["unfetched_image"], KINDS["missing_image"]
LARGE, CORRUPT, EMPTY = KINDS["too_large_image"], KINDS["corrupt_image"], KINDS["empty_caption"]
WHOLE_PNG = png(40, 40, 40)

LINES: dict[str, tuple[Damage, str]] = {  # left out with this reason
    "brackets": (line(DEEP), MALFORMED),
    "nested": (line(b'{"image": ' + b'{"a":' * 99_999), MALFORMED),
    "caption of half a pair": (line(b'{"image": "red_circle.png", "captions": ["\\ud800 a"]}'), MALFORMED),
    "name of half a pair": (line(b'{"image": "\\udc80.png", "captions": ["a"]}'), MALFORMED),
    "bytes": (line(b"\xff\xfe\xfa"), MALFORMED),
    "null": (line(None), MALFORMED),
    "number of 5,000 digits": (line(b"1" * 5000), MALFORMED),
    "no captions": (line({"image": "red_circle.png"}), EMPTY),
    "no image": (line({"captions": ["a"]}), MISSING),
    "name of a number": (line(ODD | {"image": 5}), MISSING),
    "captions of objects": (line({"image": "red_circle.png", "captions": [{}]}), EMPTY),
    "twice": (line(ODD | {"image": "red_circle.png"}), "merged 13 rows into 12 images"),
    "no image file": (leads_to("/etc/hostname"), CORRUPT),
    "file:": (leads_to("file:///etc/hostname"), UNFETCHED),
    "hf:": (leads_to("hf://datasets/a/b/x.png"), UNFETCHED),
    "zero byte": (leads_to("a\0b.png"), MISSING),
    "name of 5,000 letters": (leads_to("x" * 5000), MISSING),
    "folder": (picture(os.mkdir), MISSING),
    "pipe": (picture(os.mkfifo), MISSING),
    "30000x1": (picture(png(30_000, 1, 1)), LARGE),
    "1x30000": (picture(png(1, 30_000, 30_000)), LARGE),
    "bomb": (picture(png(60_000, 60_000, 1)), LARGE),
    "too little data": (picture(png(40, 40, 40, cut=True)), CORRUPT),
    "cut short": (picture(WHOLE_PNG[:50]), CORRUPT),
    "wrong checksum": (picture(WHOLE_PNG.replace(b"IEND", b"IENX")), CORRUPT),
    "a drawing": (picture(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), CORRUPT),
    "program": (picture(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), CORRUPT),
    "no bytes": (picture(b""), CORRUPT),
}
FILES: dict[str, tuple[Damage, str]] = {  # an error of one line
    name: (whole("captions.jsonl", content), wanted)
    for name, content, wanted in (
        ("empty", b"", "has no usable row"),
        ("only brackets", DEEP, "has no usable row"),
        ("picture", WHOLE_PNG, "has no usable row"),
        ("UTF-16", '{"image": "x"}'.encode("utf-16"), "has no column `caption`"),
        ("zeros", bytes(9999), "has no usable row"),
        ("one image", json.dumps({"image": "red_circle.png", "captions": [" "]}).encode(), "holds no usable image"),
    )
}


def coco(images: Any = (), captions: Any = ()) -> Damage:
    """Write coco.json with more images and captions than captions.jsonl has."""

    def damage(folder: Path) -> None:
        rows = [json.loads(row) for row in (folder / "captions.jsonl").read_text().splitlines()]
        listed = [{"id": key, "file_name": row["image"]} for key, row in enumerate(rows)] + list(images)
        texts = [{"image_id": key, "caption": text} for key, row in enumerate(rows) for text in row["captions"]]
        texts = [{"id": number, **text} for number, text in enumerate(texts)] + list(captions)
        (folder / "coco.json").write_text(json.dumps({"images": listed, "annotations": texts}))

    return damage


COCO_ROWS: dict[str, tuple[Damage, str]] = {
    "row of text": (coco(["a"]), MALFORMED),
    "id of a list": (coco([{"id": [], "file_name": "a"}]), MALFORMED),
    "http:": (coco([{"id": 99, "file_name": f"http{ADDRESS}"}], [dict(id=999, image_id=99, caption="a")]),
              MISSING),
    "caption of no image": (coco(captions=[{"id": 999, "image_id": 77, "caption": "a"}]), KINDS["unknown_image"]),
}  # fmt: skip
COCO_FILES: dict[str, tuple[Damage, str]] = {
    "half a pair": (coco([{"id": 99, "file_name": "\ud800"}]), "half of a surrogate pair"),
    "brackets": (whole("coco.json", DEEP), "nested more than 100 deep"),
    "nested": (whole("coco.json", b'{"images":' * 99_999), "is damaged"),
    "garbage": (whole("coco.json", b"\x00\xff\x00"), "is damaged"),
    "list": (whole("coco.json", b"[]"), "is not a caption JSON"),
    "cut short": (whole("coco.json", b'{"images": ['), "is damaged"),
    "other lists": (whole("coco.json", b'{"images": [1], "annotations": {}}'), "is not a caption JSON"),
}
RECIPES: dict[str, tuple[bytes | None, str]] = {
    "brackets": (DEEP[:400] + b"]" * 400, "nested more than 100 deep"),
    "half a pair": (b'output: "\\ud800"', "half of a surrogate pair"),
    "garbage": (b"\xff\x00", "is damaged"),
    "list": (b"[1, 2]", "expected keys and values"),
    "unknown key": (b"no_such_key: 1", "unknown keys"),
    "own member": (b"seed: &a [*a]", "nested more than 100 deep"),
    "a billion": (
        b"a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (k, k, b",".join([b"*a%d" % (k - 1)] * 10)) for k in range(1, 12)),
        "holds more than 100,000 values",
    ),
    "python": (b"seed: !!python/object/apply:os.system ['exit 1']", "is damaged"),
    "numbers": (b"1: 2", "unknown keys"),
    "folder": (None, "is a folder"),
}


def cell(column: str, value: Any) -> Damage:
    """Put a cell into the first row of a folder of records."""
    return cells(column, [value])


def cells(column: str, values: list[Any]) -> Damage:
    def change(table: pa.Table) -> pa.Table:
        field = table.field(column)
        cells = pa.array([*values, *table[column].to_pylist()[len(values) :]], field.type)
        return table.set_column(table.column_names.index(column), field, cells)

    return table(change)


def table(change: Callable[[pa.Table], pa.Table], part: str = "records") -> Damage:
    """Change the table of a folder of records, and the digest in its name: `datasets` caches by names."""

    def damage(folder: Path) -> None:
        path = next((folder / part).glob("*.parquet"))
        card, old, new = folder / "README.md", path.stem.split("-")[-1], secrets.token_hex(4)
        card.write_text(card.read_text().replace(old, new))
        pq.write_table(change(pq.read_table(path)), path.with_name(path.name.replace(old, new)))
        path.unlink()

    return damage


def retyped(name: str) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.set_column(rows.column_names.index(name), name, pa.array(range(len(rows))))


def file_of(part: str, content: bytes) -> Damage:
    return lambda folder: next((folder / part).glob("*.parquet")).write_bytes(content)


def linked(column: str) -> Damage:
    def damage(folder: Path) -> None:
        to_secret(folder / "link.png")
        cell(column, {"bytes": None, "path": "link.png"})(folder)

    return damage


WAYS = {
    "absolute": "/etc/hostname",
    "parent": "../secret.png",
    "file": "file:///etc/hostname",
    "http": f"http{ADDRESS}",
    "https": f"https{ADDRESS}",
    "hf": "hf://datasets/a/b/x.png",
    "absent": "absent.png",
}
PICTURES = {"no image": b"no image", "30000x1": png(30_000, 1, 1)}


def images_of(name: str, *ways: str) -> dict[str, tuple[Damage, str]]:
    """Cells of an image column that name files elsewhere, by default in all `WAYS`, or hold no good image."""
    wanted = f"images of `{name}` cannot be used"
    bad = {way: cell(name, {"bytes": None, "path": WAYS[way]}) for way in ways or WAYS}
    if ways:
        return {f"{name}: {way}": (damage, f"1 {wanted}") for way, damage in bad.items()}
    bad |= {kind: cell(name, {"bytes": content, "path": None}) for kind, content in PICTURES.items()}
    return {f"{name}: {kind}": (damage, f"1 {wanted}") for kind, damage in (bad | {"link": linked(name)}).items()}


SOURCE_IMAGES = images_of("gt_image") | images_of("q_image", "http") | images_of("fp_image", "http")  # one reader
EDITS = images_of("edit_image")
RECORDS: dict[str, tuple[Damage, str]] = {
    **{f"no {name}": (table(lambda rows, name=name: rows.drop_columns([name])), f"lack the columns ['{name}']")
       for name in ("direction", "fp_id", "error_types")},
    "numbers as texts": (table(retyped("q_text")), "columns of other types"),
    "numbers as images": (table(retyped("edit_image")), "columns of other types"),
    "another direction": (cell("direction", "t3i"), "t3i"),
    "no rows' file": (lambda folder: shutil.rmtree(folder / "records"), "holds no records"),
    "garbage": (file_of("records", b"PAR1" * 9), "is damaged"),
    "empty file": (file_of("records", b""), "is damaged"),
    "README": (whole("README.md", b"---\nconfigs: " + DEEP), "holds no records"),
    "README of half a YAML": (whole("README.md", b"---\nconfigs: [\n---\n"), "holds no records"),
}  # fmt: skip
