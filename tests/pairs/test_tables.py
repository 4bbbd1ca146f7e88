"""Tables as people write them: quotation marks, separators, lists as text, encodings. No row is lost in silence."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset

from repair_hf.pairs.dataset import load_pairs
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.tables import load_table
from repair_hf.runtime.options import UserError
from tests.pairs.made_sources import content, kinds, rows_of

PLAIN = [
    '"Stop" reads the sign',
    '"Stop',
    'a "yield" sign',
    "two dogs",
    '"Go"',
    'he said "go"',
    'five" nails',
    'a dog says "woof',
    '"',
]
QUOTED = [
    "a dog, brown",
    'the "stop" sign',
    '"Stop"',
    "two\nlines",
    "a\ttab; a | bar",
    "plain",
    "",
    'five" nails, "new"',
]


def captions(file, text: str) -> tuple[list[str], int]:
    """Return the captions of a table, and how many rows were left out."""
    file.write_text(text, newline="")
    problems = Problems()
    rows = load_table(file, problems)
    return rows["caption"][:], sum(problem.count for problem in problems.found())


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", "| "])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_table_that_is_not_quoted_keeps_all_rows_and_marks(tmp_path, separator, end):
    rows = [("image", "caption"), *((f"{k}.jpg", text) for k, text in enumerate(PLAIN * 7))]
    text = "".join(f"{separator.join(row)}{end}" for row in rows)
    found, left_out = captions(tmp_path / ("rows.tsv" if separator == "\t" else "rows.csv"), text)
    assert left_out == 0
    expected = [text.replace('"Go"', "Go") if separator in ",;" else text for text in PLAIN * 7]  # a well-formed cell
    assert [text.strip() for text in found] == expected


@pytest.mark.parametrize("separator", ["\t", "|"])
def test_balanced_marks_stay_where_other_cells_have_none(tmp_path, separator):
    rows = [("image", "caption"), ("a.jpg", '"Go"'), ("b.jpg", "two dogs"), ("c.jpg", 'a "stop" sign')]
    found, left_out = captions(tmp_path / "rows.tsv", "\n".join(map(separator.join, rows)))
    assert (found, left_out) == (['"Go"', "two dogs", 'a "stop" sign'], 0)


@pytest.mark.parametrize("quoting", [0, 1, 2])  # of the csv module: where needed, all, all but numbers
@pytest.mark.parametrize(("name", "separator"), [("rows.csv", ","), ("rows.csv", ";"), ("rows.tsv", "\t")])
def test_a_quoted_table_is_read_as_it_was_written(tmp_path, name, separator, quoting):
    texts = [text for text in QUOTED * 5 if separator != "\t" or "\n" not in text]
    table = pd.DataFrame({"image": [f"{k}.jpg" for k in range(len(texts))], "caption": texts, "n": range(len(texts))})
    text = table.to_csv(sep=separator, index=False, quoting=quoting)
    assert captions(tmp_path / name, text) == (texts, 0)


def test_a_mark_that_takes_other_rows_with_it_is_a_letter(tmp_path):
    rows = ["image,caption", 'a.jpg,"Stop', "b.jpg,a dog", 'c.jpg,go home"', 'd.jpg,"two', 'lines, still"', "e.jpg"]
    found, left_out = captions(tmp_path / "rows.csv", "\n".join(rows))
    assert (found, left_out) == (['"Stop', "a dog", 'go home"', "two\nlines, still"], 1)


def test_a_mark_takes_no_rows_with_it_whose_captions_hold_commas(tmp_path):
    rows = ["image,caption", 'a.jpg,"Stop', "b.jpg,a dog, brown", 'c.jpg,go home"', "d.jpg,a cat"]
    found, left_out = captions(tmp_path / "rows.csv", "\n".join(rows))
    assert (found, left_out) == (['"Stop', 'go home"', "a cat"], 1)


@pytest.mark.parametrize(
    ("header", "row"),
    [("id,image,caption", '{n},{n}.jpg,"{text}"'), ("caption,image", '"{text}",{n}.jpg'),
     ("caption,url", '"{text}",http://a.b/{n}?w=1'), ("image,caption,n", '"{n}.jpg","{text}",{n}')],
)  # fmt: skip
@pytest.mark.parametrize("text", ["a shirt.\nsoft, warm, red", "a shirt\nsoft, red\nand large", "a,\nb", "one line"])
def test_a_quoted_caption_of_several_lines_in_any_column(tmp_path, header, row, text):
    rows = [header, *(row.format(n=n, text=text) for n in range(3))]
    assert captions(tmp_path / "rows.csv", "\n".join(rows)) == ([text] * 3, 0)


def test_lines_in_a_field_of_a_tsv_are_a_named_problem(tmp_path):
    rows = ["image\tcaption", 'a.jpg\t"two', 'lines"', "b.jpg\ta dog"]
    assert captions(tmp_path / "rows.tsv", "\n".join(rows)) == (['"two', "a dog"], 1)


SPELLINGS = {
    "json": json.dumps,
    "python": repr,
    "numpy": lambda texts: str(np.array(texts)),
    "array": lambda texts: repr(np.array(texts, dtype=object)),
}


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
    texts = [SPELLINGS[spelling](row["captions"]) for row in rows]
    if name == "rows.tsv":  # NumPy breaks lines
        texts = [text.replace("\n", " ") for text in texts]
    table = pd.DataFrame({"image": [row["image"] for row in rows], "caption": texts})
    write = {
        "rows.csv": lambda file: table.to_csv(file, index=False),
        "rows.tsv": lambda file: table.to_csv(file, index=False, sep="\t"),
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
    assert content(load_pairs(source, split="all", **options)) == {row["image"]: row["captions"] for row in rows}
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


def test_a_cell_far_longer_than_its_neighbors_is_a_named_problem(tmp_path):
    """Rows of another shape than their neighbors, which marks enclose, pass for one caption."""
    rows = ["image,caption", *(f"{n}.jpg,a dog in the snow" for n in range(40))]
    swallowed = "\n".join(f"{n}.jpg\t" + 30 * "a cat. " for n in range(10)).replace("9.jpg\t", "9.txt\t")
    rows.insert(6, f'x.jpg,"{swallowed}"')
    (tmp_path / "rows.csv").write_text("\n".join(rows))
    problems = Problems()
    found = load_table(tmp_path / "rows.csv", problems)
    assert found["image"][:] == [f"{n}.jpg" for n in range(40)]
    (problem,) = problems.found()
    assert (problem.kind, problem.count, problem.examples) == ("too_long_cell", 1, ("line 16",))


def test_long_captions_are_no_problem_among_their_like(tmp_path):
    rows = [(f"{n}.jpg", (10 + n % 5) * "A dog runs through deep snow. ") for n in range(40)]
    rows.append(("long.jpg", 40 * "A dog runs through deep snow. "))
    text = "".join(f"{image},{caption}\n" for image, caption in [("image", "caption"), *rows])
    found, left_out = captions(tmp_path / "rows.csv", text)
    assert left_out == 0 and len(found) == 41
