"""Tables as people write them: quotation marks, separators, lists as text. How many functions one passes."""

from __future__ import annotations

import json
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import PIL.Image
import pytest

import repair_hf
from repair_hf.pairs.dataset import load_pairs
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.tables import load_table
from tests.pairs.made_sources import content, rows_of

TEXTS = [
    "a dog, brown",
    'the "stop" sign',
    '"Stop"',
    "two\nlines",
    "a tab; a | bar",
    "plain",
    "",
    'five" nails, "new"',
    "NA",
]


def captions(file: Path, text: str) -> list[str]:
    file.write_text(text, newline="")
    return load_table(file, Problems())["caption"][:]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("quoting", [0, 1, 2])  # of the csv module: where needed, all, all but numbers
@pytest.mark.parametrize("separator", [",", ";"])
def test_commas_and_semicolons_quote_cells(tmp_path, separator, quoting, end):
    texts = [*TEXTS, '"', '"Stop" reads the sign', "007"]
    table = pd.DataFrame({"image": [f"{k}.jpg" for k in range(len(texts))], "caption": texts, "n": range(len(texts))})
    text = table.to_csv(sep=separator, index=False, quoting=quoting, lineterminator=end)
    assert captions(tmp_path / "rows.csv", text) == texts


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", ["\t", "|", "| "])
def test_tabs_and_bars_leave_quotation_marks_alone(tmp_path, separator, end):
    texts = ['"Stop" reads the sign', '"Stop', 'a "yield" sign', '"Go"', 'five" nails', '"', "a dog, brown", "NA"]
    rows = [("image", "caption"), *((f"{k}.jpg", text) for k, text in enumerate(texts))]
    text = "".join(f"{separator.join(row)}{end}" for row in rows)
    assert [caption.strip() for caption in captions(tmp_path / "rows.tsv", text)] == texts


SPELLINGS = {
    "json": json.dumps,
    "python": repr,
    "numpy": lambda texts: str(np.array(texts)),
    "array": lambda texts: repr(np.array(texts, dtype=object)),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_a_list_stored_as_text_is_a_list(folder, caplog, spelling, name):
    caplog.set_level("INFO")
    rows = rows_of(folder)
    rows[0]["captions"] = [
        "it's a dog",
        'the "stop" sign',
        'both: it\'s "here"',
        "[a] list, of\ttabs",
        "café \\ \U0001f600",
    ]
    rows[1]["captions"] = ["alone"]
    rows[2]["captions"] = ["before", None, "after"]
    texts = [SPELLINGS[spelling](row["captions"]) for row in rows]  # NumPy breaks lines
    table = pd.DataFrame({"image": [row["image"] for row in rows], "caption": texts})
    write = {
        "rows.csv": lambda file: table.to_csv(file, index=False),
        "rows.jsonl": lambda file: table.to_json(file, orient="records", lines=True),
        "rows.parquet": table.to_parquet,
    }
    write[name](folder / name)
    expected = {row["image"]: [text for text in row["captions"] if text] for row in rows}
    assert content(load_pairs(folder / name, split="all")) == expected
    said = "column `caption` holds lists as text, which are read as lists"
    assert [said in message for message in caplog.messages].count(True) == 1


@pytest.mark.parametrize(
    ("name", "header", "row"),
    [
        ("results.csv", "image_name| comment_number| comment", "{}| 0| {}"),  # Flickr30k's own
        ("rows.csv", "image_name;comment", "{};{}"),
        ("captions.txt", "image_name,comment", "{},{}"),  # Kaggle's Flickr8k
        ("rows.csv", "image_name,comment", "{}#0,{}"),
        ("Flickr8k.token.txt", None, "{}#0\t{}"),
        ("results.token", None, "{}#0\t{}"),
    ],
)
def test_caption_files_that_people_have(folder, name, header, row):
    rows = rows_of(folder)
    lines = [row.format(each["image"], f"{each['captions'][0].replace(',', '')} .") for each in rows]
    (folder / name).write_text("\n".join([header, *lines] if header else lines))
    columns = {"image_column": "image_name", "caption_column": "comment"} if header else {}
    found = load_pairs(folder / name, split="all", strict=True, **columns)
    assert content(found) == {each["image"]: [f"{each['captions'][0].replace(',', '')} ."] for each in rows}


ROOM = Path(repair_hf.__file__).parent / "pairs"
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_a_table_passes_the_files_and_as_many_functions_as_the_page_says(tmp_path):
    for k in range(4):
        PIL.Image.new("RGB", (8 * k + 8, 8), "red").save(tmp_path / f"{k}.jpg")
    (tmp_path / "rows.csv").write_text("image,caption\n" + "".join(f"{k}.jpg,a\n{k}.jpg,b\n" for k in range(4)))
    entered: set[tuple[str, str]] = set()

    def note(frame, event, _) -> None:
        code = frame.f_code
        is_whole = not code.co_name.startswith("<")  # no lambda, no comprehension
        if event == "call" and is_whole and Path(code.co_filename).parent == ROOM:
            entered.add((Path(code.co_filename).name, code.co_qualname))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        pairs = load_pairs(tmp_path / "rows.csv", split="all")
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    assert len(pairs) == 8
    section = PAGE.read_text(encoding="utf-8").partition("## The way of a table\n")[2].partition("\n## ")[0]
    files = set(re.findall(r"^\| `pairs/(\w+\.py)` \|", section, re.MULTILINE))
    assert {file for file, _ in entered} - {"problems.py"} == files
    n_images = sum(file == "images.py" for file, _ in entered)
    n_rows = sum(file not in ("images.py", "problems.py") for file, _ in entered)
    counts = re.search(r"way: (\d+), and (\d+) that", section)
    assert counts and [n_rows, n_images] == [int(number) for number in counts.groups()]
