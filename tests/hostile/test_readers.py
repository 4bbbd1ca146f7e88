"""Each hostile input, once for the reader of its kind: left out with a reason, or an error of one line.

Rooms test what is missing, torn or of another type in their own files; here is what somebody means to do harm with.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import load_kept
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.options import PairsOptions, UserError
from tests.hostile import damage
from tests.hostile.damage import ADDRESS, ODD, coco, line, picture, png, records_table, whole

WHOLE_PNG = png(40, 40, 40)
LEFT_OUT = {  # of pairs
    "caption of half a pair": (line(b'{"image": "red_circle.png", "captions": ["\\ud800 a"]}'), "malformed_row"),
    "name of half a pair": (line(b'{"image": "\\udc80.png", "captions": ["a"]}'), "malformed_row"),
    "number of 5,000 digits": (line(b"1" * 5000), "malformed_row"),
    "name of a number": (line(ODD | {"image": 5}), "missing_image"),
    "captions of objects": (line({"image": "red_circle.png", "captions": [{}]}), "empty_caption"),
    "file:": (line(ODD | {"image": "file:///etc/hostname"}), "corrupt_image"),
    "hf:": (line(ODD | {"image": "hf://datasets/a/b/x.png"}), "unfetched_image"),
    "zero byte": (line(ODD | {"image": "a\0b.png"}), "missing_image"),
    "folder": (picture(os.mkdir), "missing_image"),
    "pipe": (picture(os.mkfifo), "missing_image"),
    "30000x1": (picture(png(30_000, 1, 1)), "too_large_image"),
    "1x30000": (picture(png(1, 30_000, 30_000)), "too_large_image"),
    "bomb": (picture(png(60_000, 60_000, 1)), "too_large_image"),
    "too little data": (picture(png(40, 40, 40, cut=True)), "corrupt_image"),
    "wrong checksum": (picture(WHOLE_PNG.replace(b"IEND", b"IENX")), "corrupt_image"),
    "a drawing": (picture(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "corrupt_image"),
    "program": (picture(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "corrupt_image"),
    "no bytes": (picture(b""), "corrupt_image"),
    "coco.json: http": (
        coco([{"id": 99, "file_name": f"http{ADDRESS}"}], [dict(id=999, image_id=99, caption="a")]), "missing_image"
    ),
}  # fmt: skip
UNREADABLE = {  # of pairs
    "picture": (whole("captions.jsonl", WHOLE_PNG), "has no usable row"),
    "UTF-16": (whole("captions.jsonl", '{"image": "x"}'.encode("utf-16")), "has no column `caption`"),
    "zeros": (whole("captions.jsonl", bytes(9999)), "has no usable row"),
}
IMAGES = {"no image": b"no image", "no bytes": b"", "30000x1": png(30_000, 1, 1), "bomb": png(60_000, 60_000, 1)}
RECORDS = {
    f"{column}: {name}": (damage.cells(column, [{"bytes": content, "path": None}]), f"images of `{column}` cannot be")
    for column in ("gt_image", "edit_image")
    for name, content in IMAGES.items()
} | {
    "numbers as images": (
        records_table(lambda rows: rows.drop_columns("edit_image").append_column("edit_image", pa.array(range(24)))),
        "columns of other types",
    ),
    "no rows' file": (lambda folder: shutil.rmtree(folder / "records"), "holds no records"),
}
A_BILLION = b"a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (k, k, b",".join([b"*a%d" % (k - 1)] * 10)) for k in range(1, 12)
)
RECIPES = {
    "a billion": (A_BILLION, "by the alias"),
    "own member": (b"seed: &a [*a]", "by the alias"),
    "python": (b"strict: !!python/object/apply:os.system ['exit 1']", "is damaged"),
    "numbers": (b"1: 2", "unknown keys"),
}


@pytest.fixture(scope="module", autouse=True)
def nobody_is_asked():
    yield
    damage.LISTENER.setblocking(False)
    with pytest.raises(BlockingIOError):
        damage.LISTENER.accept()


def one_line(error: pytest.ExceptionInfo, folder: Path) -> bool:
    return "\n" not in str(error.value).replace(str(folder), "") and len(str(error.value)) < 1200


def read_pairs(name: str, folder: Path):
    if name.startswith("coco.json"):
        return load_pairs(folder / "coco.json", image_folder=folder, split="all")
    return load_pairs(folder, split="all")


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_row_of_pairs_is_left_out(name, pairs_folder, tmp_path):
    spoil, kind = LEFT_OUT[name]
    spoil(folder := shutil.copytree(pairs_folder, tmp_path / "pairs"))
    pairs = read_pairs(name, folder)
    assert [(problem.kind, problem.count) for problem in pairs.problems] == [(kind, 1)]
    assert len(pairs.images) == 12 and len(pairs.captions) == 24


@pytest.mark.parametrize("name", UNREADABLE)
def test_pairs_are_an_error_of_one_line(name, pairs_folder, tmp_path):
    spoil, wanted = UNREADABLE[name]
    spoil(folder := shutil.copytree(pairs_folder, tmp_path / "pairs"))
    with pytest.raises(UserError, match=wanted) as error:
        read_pairs(name, folder)
    assert one_line(error, folder)


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_an_error_of_one_line(name, illustrated_folder, tmp_path):
    spoil, wanted = RECORDS[name]
    spoil(folder := shutil.copytree(illustrated_folder, tmp_path / "records"))
    with pytest.raises(UserError, match=wanted) as error:
        load_kept(folder)
    assert one_line(error, folder)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_an_error_of_one_line(name, tmp_path):
    content, wanted = RECIPES[name]
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(UserError, match=wanted) as error:
        parse((PairsOptions,), ["--config", str(tmp_path / "x.yaml")], "repair-hf x")
    assert one_line(error, tmp_path)
