"""Tables as people write them: quotation marks, separators, lists as text, encodings. No row is lost in silence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from repair_hf.pairs.dataset import load_pairs
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.tables import load_table
from repair_hf.runtime.options import UserError
from tests.pairs.made_sources import content, kinds, rows_of

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


MISFITS = {  # a table, and what its error says
    "unquoted commas in every row": ("image,caption\na.jpg,a dog, brown\nb.jpg,a cat, black\n",
        r"line 2 has 3 cells, and the header has 2 \(image, caption\). Enclose each cell that holds `,` in quot"),
    "one row that is too short": ('image,caption\na.jpg,"two\nlines"\n\nb.jpg\n', "line 5 has 1 cells"),
    "a tab in a caption": ("image\tcaption\na.jpg\ta\tdog\n", r"line 2 has 3 cells.* Remove '\\t' from its cells"),
    "a mark that encloses rows": ('image,caption\na.jpg,"Stop\nb.jpg,a dog\nc.jpg,go home"\nd.jpg,a\n',
        "row 1 has a quotation mark that encloses other rows: 'Stop'. Enclose this caption"),
    "a mark without an end": ('caption,image\na,a.jpg\n"Stop,b.jpg\nx,c.jpg\n', "line 3 has 1 cells"),
    "quoted tabs": ('image\tcaption\na.jpg\t"a ""stop"" sign"\n', "row 1 has a cell in quotation marks.* with commas"),
    "no rows": ("image,caption\n", "has no usable row; each needs an image and a caption"),
    "nothing": ("", "cannot be read as a table"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_a_table_that_does_not_fit_fails_with_its_first_bad_line(tmp_path, name):
    text, said = MISFITS[name]
    with pytest.raises(UserError, match=said):
        captions(tmp_path / "rows.csv", text)


@pytest.mark.parametrize("name", ["rows.csv", "metadata.csv", "rows.tsv"])
def test_columns_of_one_name_are_one_column_of_lists(folder, name):
    (folder / "captions.jsonl").unlink()
    separator = "\t" if name == "rows.tsv" else ","
    image = "file_name" if name == "metadata.csv" else "image"
    rows = [
        [image, "caption", "caption", "", "caption"],
        ["red_circle.png", "a", "b", "7", "c"],
        ["blue_circle.png", "d", "", "", "e"],
    ]
    (folder / name).write_text("\n".join(map(separator.join, rows)))
    pairs = load_pairs(folder if name == "metadata.csv" else folder / name, split="all")
    assert content(pairs) == {"red_circle.png": ["a", "b", "c"], "blue_circle.png": ["d", "e"]}


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json"])
def test_only_strings_of_json_are_captions(folder, name):
    names = [row["image"] for row in rows_of(folder)[:6]]
    values = ["good", float("nan"), True, float("inf"), 12, ["one", None, False, "two"]]
    rows = [
        json.dumps({"image": image, "captions": value, "id": 7 + k})
        for k, (image, value) in enumerate(zip(names, values, strict=True))
    ]
    (folder / name).write_text("\n".join(rows) if name == "rows.jsonl" else f"[{','.join(rows)}]")
    pairs = load_pairs(folder / name, split="all", image_id_column="id")
    assert content(pairs) == {"7": ["good"], "12": ["one", "two"]}
    assert kinds(pairs) == {"empty_caption": 6, "image_without_captions": 4}


SPELLINGS = {
    "json": json.dumps,
    "python": repr,
    "numpy": lambda texts: str(np.array(texts)),
    "array": lambda texts: repr(np.array(texts, dtype=object)),
}


def unquoted(file: Path, table: pd.DataFrame) -> None:
    rows = [table.columns, *table.itertuples(index=False)]
    file.write_text("\n".join(map("\t".join, rows)))


CARRIERS = ["rows.csv", "rows.tsv", "rows.jsonl", "rows.json", "rows.parquet", "metadata.csv", "saved"]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", CARRIERS)
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
    texts = [SPELLINGS[spelling](row["captions"]) for row in rows]
    if name == "rows.tsv":  # NumPy breaks lines
        texts = [text.replace("\n", " ") for text in texts]
    table = pd.DataFrame({"image": [row["image"] for row in rows], "caption": texts})
    write = {
        "rows.csv": lambda file: table.to_csv(file, index=False),
        "rows.tsv": lambda file: unquoted(file, table),
        "rows.jsonl": lambda file: table.to_json(file, orient="records", lines=True),
        "rows.json": lambda file: table.to_json(file, orient="records"),
        "rows.parquet": table.to_parquet,
        "metadata.csv": lambda file: table.rename(columns={"image": "file_name"}).to_csv(file, index=False),
        "saved": lambda file: Dataset.from_pandas(table).save_to_disk(file),
    }
    write[name](folder / name)
    source = folder / name
    if name == "metadata.csv":
        (folder / "captions.jsonl").unlink()
        source = folder
    options = {"image_folder": folder} if name == "saved" else {}
    expected = {row["image"]: [text for text in row["captions"] if text] for row in rows}
    assert content(load_pairs(source, split="all", **options)) == expected
    said = "column `caption` holds lists as text, which are read as lists"
    assert [said in message for message in caplog.messages].count(True) == 1


def test_a_column_with_other_texts_beside_lists_stays_text(folder):
    rows = ["image,caption", 'red_circle.png,"[""a"", ""b""]"', "blue_circle.png,[sic] a dog", "red_square.png,[]"]
    (folder / "rows.csv").write_text("\n".join(rows))
    found = content(load_pairs(folder / "rows.csv", split="all"))
    assert list(found.values()) == [['["a", "b"]'], ["[sic] a dog"], ["[]"]]


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


def test_a_json_list_of_objects(folder):
    (folder / "rows.json").write_text("\ufeff " + json.dumps([*rows_of(folder), "no object"]))
    found = load_pairs(folder / "rows.json", split="all")
    assert content(found) == {row["image"]: row["captions"] for row in rows_of(folder)}
    assert kinds(found) == {"malformed_row": 1}


@pytest.mark.parametrize(
    ("name", "encoding"), [("rows.csv", "latin1"), ("rows.csv", "utf-16"), ("rows.json", "latin1")]
)
def test_a_table_in_another_encoding(tmp_path, name, encoding):
    text = "image,caption\nx.png,café\n" if name == "rows.csv" else '[{"image": "x.png", "caption": "café"}]'
    (tmp_path / name).write_text(text, encoding=encoding)
    said = rf"rows.\w+ cannot be read as a table: .*codec.*Save it as UTF-8: `iconv -f {encoding} -t utf-8 rows"
    with pytest.raises(UserError, match=said):
        load_pairs(tmp_path / name)
