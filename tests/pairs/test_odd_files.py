"""Damaged and odd files: what is read of them, and what the error says where nothing is."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Image

from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from tests.pairs.made_sources import content, kinds

CSV = "image,caption\n"
GOOD = CSV + "red_circle.png,a\n"
MISSING = Dataset.from_dict({"image": ["absent.png"], "caption": ["a"]}).cast_column("image", Image())
RED_SQUARE = {"image": "red_square.png", "captions": ["b"]}


def lines(*rows: object) -> str:
    return "\n".join(map(json.dumps, rows))


def put(folder: Path, name: str, value: str | bytes | Dataset | pd.DataFrame) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, pd.DataFrame):
        value.to_parquet(file)
    elif isinstance(value, Dataset):
        pq.write_table(value.data.table, file)  # as it is: `to_parquet` opens the images
    else:
        file.write_bytes(value.encode() if isinstance(value, str) else value)


README = "---\nconfigs:\n- {config_name: english, data_files: e/*}\n- {config_name: german, data_files: g/*}\n---\n"
# the source, what it holds or the files to write, options, and the error
REFUSED = {
    "commas in every row": ("a.csv", CSV + "a.jpg,a dog, brown\nb.jpg,a cat, black\n", {},
        r"line 2 has 3 cells, and the header has 2 \(image, caption\). Enclose each cell that holds `,` in quot"),
    "a row that is too short": ("a.csv", CSV + 'a.jpg,"two\nlines"\n\nb.jpg\n', {}, "line 5 has 1 cells"),
    "a tab in a caption": ("a.csv", "image\tcaption\na.jpg\ta\tdog\n", {}, r"line 2 has 3 cells.* Remove '\\t' from"),
    "a mark around rows": ("a.csv", CSV + 'a.jpg,"Stop\nb.jpg,a dog\nc.jpg,go home"\nd.jpg,a\n', {},
        "row 1 has a quotation mark that encloses other rows: 'Stop'. Enclose this caption"),
    "a mark without an end": ("a.csv", 'caption,image\na,a.jpg\n"Stop,b.jpg\nx,c.jpg\n', {}, "line 3 has 1 cells"),
    "quoted tabs": ("a.csv", 'image\tcaption\na.jpg\t"a ""stop"" sign"\n', {},
        "row 1 has a cell in quotation marks.* with commas"),
    "no rows": ("a.csv", CSV, {}, "has no usable row; each needs an image and a caption"),
    "nothing": ("a.csv", "", {}, "cannot be read as a table"),
    "no header": ("cc3m.tsv", "a bus\thttp://a.b/x\na dog\thttp://a.b/y\n", {},
        r"no column `image`; it has .*. Write the names of the columns into its first line"),
    "Latin 1": ("a.csv", GOOD.replace("a\n", "café\n").encode("latin1"), {},
        "a.csv cannot be read as a table: .*codec.*Save it as UTF-8: `iconv -f latin1 -t utf-8 a.csv"),
    "UTF-16": ("a.csv", GOOD.encode("utf-16"), {}, "codec.*`iconv -f utf-16 -t utf-8 a.csv"),
    "JSON in Latin 1": ("a.json", '[{"image": "é"}]'.encode("latin1"), {}, "codec.*`iconv -f latin1 -t utf-8 a.json"),
    "numbers as images": ("a.parquet", pd.DataFrame({"image": [1], "caption": ["a"]}), {},
        r"Column `image` of .* holds Value\('int64'\); it must hold image files"),
    "numbers as captions": ("a.parquet", pd.DataFrame({"image": ["red_circle.png"], "caption": [1]}), {},
        "must hold a string or a list of strings"),
    "no such column": ("a.csv", GOOD, {"caption_column": "text"},
        r"no column `text`; it has \['image', 'caption'\]. Set `caption_column`"),
    "no such column of ids": ("a.csv", GOOD, {"image_id_column": "x"}, "Set `image_id_column`"),
    "no such groups": ("a.csv", GOOD, {"group": "shop"}, "no column `shop`.* Set `group`"),
    "an absent JSON": ("absent.json", None, {}, "absent.json` does not exist"),
    "no folder of images": ("coco.json", "{}", {}, "`image_folder` must be the folder of the images"),
    "no caption JSON": ("coco.json", "{}", {"image_folder": "."}, "is not a caption JSON: it needs the lists"),
    "groups of a JSON": ("coco.json", "{}", {"group": "shop"}, "`group` shop: only for a table or a dataset"),
    "options of the Hub": ("a.csv", GOOD, {"pairs_config": "en", "pairs_revision": "v1"},
        "`pairs_config` en and `pairs_revision` v1"),
    "nothing there": ("absent", None, {}, r"as a dataset, and is no folder here: .*[^.]\. Give a folder"),
    "another file": ("red_circle.png", None, {}, r"is a file; only tables .*.csv, .tsv, .*, .json and .tar are read"),
    "a folder too high": ("up", {"up/photos/captions.jsonl": "{}"}, {},
        "up` has no captions.jsonl, but a folder in it has: give .*up/photos"),
    "a script": ("s", {"s/s.py": "x = 1"}, {}, "has no data that can be read. Put a captions.jsonl"),
    "images alone": ("s", {"s/a.png": b""}, {}, "has images, and no captions. Put a captions.jsonl, or a text"),
    "missing files": ("a.parquet", MISSING, {}, r"no usable image .*: images that do not exist: 1 \('absent"),
    "several datasets": ("s", {"s/README.md": README, "s/e/x.csv": GOOD, "s/g/x.csv": GOOD}, {},
        "holds several datasets: english, german. Give"),
}  # fmt: skip


@pytest.mark.parametrize("title", REFUSED)
def test_an_error_says_what_is_wrong_and_what_to_do(folder, title):
    name, value, options, message = REFUSED[title]
    files = value if isinstance(value, dict) else {} if value is None else {name: value}
    for path, part in files.items():
        put(folder, path, part)
    with pytest.raises(UserError, match=message):
        load_pairs(folder / name, split="all", **options)


# the file, its text, the captions of each image, and what is left out
READ = {
    "other texts beside lists": ("a.csv", CSV + 'red_circle.png,"[""a"", ""b""]"\nred_square.png,[sic]\n',
        {"red_circle.png": ['["a", "b"]'], "red_square.png": ["[sic]"]}, {}),
    "bad rows of a table": ("a.csv", CSV + "red_circle.png,a\n../x.png,b\nblue_circle.png,\n./red_circle.png,5",
        {"red_circle.png": ["a", "5"]}, {"missing_image": 1, "empty_caption": 1, "image_without_captions": 1}),
    "columns of one name": ("a.csv", "image,caption,caption,,caption\nred_circle.png,a,b,7,c\nred_square.png,d,,,e",
        {"red_circle.png": ["a", "b", "c"], "red_square.png": ["d", "e"]}, {"empty_caption": 1}),
    "a number after one name": ("a.csv", CSV + "red_circle.png#0,a\nred_square.png,b",
        {"red_square.png": ["b"]}, {"missing_image": 1}),
    "numbers of rows": ("a.csv", "image,caption,id\nred_circle.png,a,7\nred_square.png,b,8",
        {"red_circle.png": ["a"], "red_square.png": ["b"]}, {}),
    "an image in the first of its rows": (
        "a.csv", "image_id,image,caption\nx,red_circle.png,a\nx,,b\ny,red_square.png,c",
        {"x": ["a", "b"], "y": ["c"]}, {}),
    "tabs of one name": ("a.tsv", "image\tcaption\tcaption\nred_circle.png\ta\tb", {"red_circle.png": ["a", "b"]}, {}),
    "a list of JSON": ("a.json", "\ufeff " + json.dumps([RED_SQUARE, "no object"]),
        {"red_square.png": ["b"]}, {"malformed_row": 1}),
    "values of JSON": ("a.jsonl", lines(*({"image": f"{color}_circle.png", "captions": value} for color, value in zip(
        ("red", "green", "blue"), ("good", float("nan"), ["one", None, False, "two"]), strict=True))),
        {"red_circle.png": ["good"], "blue_circle.png": ["one", "two"]},
        {"empty_caption": 3, "image_without_captions": 1}),
    "numbers of JSON": ("a.jsonl", lines(RED_SQUARE | {"captions": "text"}, *(
        {"image": "red_circle.png", "captions": value} for value in (True, float("inf"), 12))),
        {"red_square.png": ["text"]}, {"empty_caption": 3, "image_without_captions": 1}),
}  # fmt: skip


@pytest.mark.parametrize("title", READ)
def test_what_can_be_used_of_an_odd_file_is_read(folder, title):
    name, text, expected, left_out = READ[title]
    put(folder, name, text)
    pairs = load_pairs(folder / name, split="all")
    assert content(pairs) == expected and kinds(pairs) == left_out


def test_a_row_without_a_split_among_others_with_one(folder):
    put(folder, "a.jsonl", lines(RED_SQUARE | {"split": "train"}, {"image": "red_circle.png", "captions": ["a"]}))
    pairs = load_pairs(folder / "a.jsonl")
    assert (len(pairs.images), kinds(pairs)) == (1, {"no_split": 1})


def test_columns_of_one_name_in_metadata(folder):
    (folder / "captions.jsonl").unlink()
    put(folder, "metadata.csv", "file_name,caption,caption\nred_circle.png,a,b")
    assert content(load_pairs(folder, split="all")) == {"red_circle.png": ["a", "b"]}
