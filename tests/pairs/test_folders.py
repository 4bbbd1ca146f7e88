"""Folders of images with their captions beside them, as img2dataset, `datasets` and people lay them out."""

from __future__ import annotations

import io
import json
import tarfile
import unicodedata
from pathlib import Path

import pandas as pd
import PIL.Image
import pytest

from repair_hf.evaluation.pictures import load_test_split
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from tests.pairs.made_sources import captions_by_picture, content, each, img2dataset, kinds, rows_of


def file_of(color: str, kind: str) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("RGB", (8, 8), color).save(file, kind)
    return file.getvalue()


def test_shards_of_img2dataset_by_column_alone_by_split_and_below_data(some_photos, tmp_path):
    """`test_layouts` reads each form as it is."""
    data, expected = (
        img2dataset(some_photos, "tars", tmp_path / "data"),
        captions_by_picture(load_pairs(some_photos, split="all")),
    )

    def read(source: Path = data, **options) -> dict[str, list[str]]:
        return captions_by_picture(load_pairs(source, split="all", strict=True, **options))

    tables = img2dataset(some_photos, "parquet", tmp_path / "tables")
    assert read(tables, image_column="jpg", caption_column="caption") == expected
    assert read(image_column="jpg", caption_column="txt") == expected
    one = read(data / "00001.tar")
    assert set(one) < set(expected) and sum(map(len, one.values())) == sum(map(len, expected.values())) // 2
    for file in [*data.glob("*.json"), *data.glob("*.parquet")]:
        file.unlink()
    assert read() == expected  # in the end tars alone
    (data / "00001.tar").rename(data / "test-00001.tar")
    (data / "00000.tar").rename(data / "train-00000.tar")
    (data / "README.md").write_text("---\nlicense: mit\n---\n")  # as a dataset of the Hub
    assert len(load_pairs(data, split="test").images) == len(one) and read() == expected
    (tmp_path / "hub").mkdir()
    data.rename(tmp_path / "hub" / "data")
    assert read(tmp_path / "hub") == read(tmp_path / "hub", image_column="png", caption_column="txt") == expected


@pytest.mark.parametrize("layout", ["files", "tar"])
def test_a_text_beside_each_image_has_a_caption_on_each_line(folder, tmp_path, layout):
    (folder / "captions.jsonl").unlink()
    for file in folder.glob("*.png"):
        file.with_suffix(".txt").write_text(f"a {file.stem}\r\n\n the second line\n")
    (folder / "red_circle.txt").unlink()
    source = folder
    if layout == "tar":
        source = tmp_path / "x.tar"
        with tarfile.open(source, "w") as tar:
            for file in sorted(folder.iterdir()):
                tar.add(file, file.name)
    pairs = load_pairs(source, split="all")
    expected = {name: [f"a {Path(name).stem}", "the second line"] for name in pairs.images["image_id"]}
    assert content(pairs) == expected and set(expected) <= {file.name for file in folder.iterdir()}
    assert len(pairs.images) == 11 and kinds(pairs) == {"empty_caption": 1, "image_without_captions": 1}


@pytest.mark.parametrize("kind", ["parquet", "csv", "tar"])
def test_every_file_of_a_folder_is_read_in_the_split_that_its_name_says(some_photos, tmp_path, caplog, kind):
    """A file without a split's word beside one with it is `train`."""
    rows = [(row["image"], row["captions"]) for row in rows_of(some_photos)]
    names = ["beach", "street_test", "forest", "valley", "data/dev-00000", "eval/harbor"]
    for k, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_rows(tmp_path / f"{name}.{kind}", some_photos, rows[k::6])
    expected = {"train": {0, 2, 3}, "test": {1, 5}, "validation": {4}, "all": {*range(6)}}
    for split, files in expected.items():
        pairs = load_pairs(tmp_path, split=split, image_folder=some_photos)
        assert len(pairs.images) == sum(len(rows[k::6]) for k in files), split
    assert "The names of 3 of 6 files say no split, such as beach" in caplog.text
    more = "more.parquet" if kind == "csv" else "more.csv"
    (tmp_path / more).touch()
    with pytest.raises(UserError, match=rf"holds data of several kinds: .*\.{kind}, {more}"):
        load_pairs(tmp_path)


def write_rows(file: Path, photos: Path, rows: list[tuple[str, list[str]]]) -> None:
    if file.suffix == ".csv":
        each(rows).to_csv(file, index=False)
    elif file.suffix == ".parquet":
        cells = [(photos / name).read_bytes() for name, _ in rows]
        pd.DataFrame({"image": cells, "caption": [texts for _, texts in rows]}).to_parquet(file)
    else:
        with tarfile.open(file, "w") as tar:
            for name, texts in rows:
                tar.add(photos / name, name)
                info = tarfile.TarInfo(f"{Path(name).stem}.txt")
                info.size = len(content := "\n".join(texts).encode())
                tar.addfile(info, io.BytesIO(content))


def test_splits_of_tars_beside_other_files(some_photos, tmp_path):
    img2dataset(some_photos, "tars", tmp_path / "data")
    for number, split in ((0, "train"), (1, "test")):
        (tmp_path / "data" / f"0000{number}.tar").rename(tmp_path / "data" / f"{split}-{number}.tar")
        (tmp_path / "data" / f"0000{number}.parquet").unlink()
    one, whole = (load_pairs(tmp_path / "data", split=split) for split in ("test", "all"))
    assert len(one.images) < len(whole.images) == 16


README = """---
configs:
- config_name: default
  data_files:
  - split: {split}
    path: {path}
---
"""


def test_a_folder_is_read_from_its_own_files_though_another_had_its_name(photos, tmp_path):
    """`datasets` would give the first folder's rows again: its cache knows the name and the README.md."""
    found = []
    for place, some in (("one", slice(0, 20)), ("two", slice(20, 40)), ("two", slice(0, 5))):
        folder = tmp_path / place / "photos"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(README.format(split="test", path="part-*.parquet"))
        write_rows(
            folder / "part-0.parquet", photos, [(row["image"], row["captions"]) for row in rows_of(photos)[some]]
        )
        pairs = load_pairs(folder, split="test")
        assert len(load_test_split(str(folder))) == len(pairs.images)
        found.append(len(pairs.images))
    assert found == [20, 20, 5]


@pytest.mark.parametrize("path", ["http://127.0.0.1:1/x.parquet", "../secret/*.parquet", "/secret/x.parquet", "a.csv"])
def test_a_readme_names_no_file_outside_its_folder(photos, tmp_path, path):
    for name in ("secret", "data"):
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name / "x.parquet", photos, [("000000000.jpg", ["a"])])
    path = path.replace("/secret/x", f"{tmp_path}/secret/x")
    (tmp_path / "data" / "README.md").write_text(README.format(split="train", path=path))
    for load in (load_pairs, lambda source: load_test_split(str(source))):
        with pytest.raises(UserError, match="README.md names `.*`, which is no data file of this folder"):
            load(tmp_path / "data")


@pytest.mark.parametrize("where", ["beside the folders", "in each folder", "a column of splits"])
def test_metadata_and_folders_of_splits(folder, where):
    rows = rows_of(folder)
    (folder / "captions.jsonl").unlink()
    lines: dict[str, list[str]] = {"": [], "train": [], "test": []}
    for k, row in enumerate(rows):
        split = "test" if k < 3 else "train"
        (folder / split).mkdir(exist_ok=True)
        (folder / row["image"]).rename(folder / split / row["image"])
        line = {"file_name": f"{split}/{row['image']}", "caption": row["captions"][0]}
        if where == "in each folder":
            lines[split].append(json.dumps(line | {"file_name": row["image"]}))
        else:
            lines[""].append(json.dumps(line | ({"split": "ab"[k % 2]} if where == "a column of splits" else {})))
    for split, some in lines.items():
        if some:
            (folder / split / "metadata.jsonl").write_text("\n".join(some))
    if where == "a column of splits":
        assert len(load_pairs(folder, split="a", strict=True).images) == 6
    else:
        assert len(load_pairs(folder, strict=True).images) == 9
        assert load_pairs(folder, split="test").images["image_id"][0] == f"test/{rows[0]['image']}"


@pytest.mark.parametrize(("form", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
@pytest.mark.parametrize("place", [".", "images"])
def test_names_whose_accents_are_encoded_in_another_form(tmp_path, form, other, place):
    name = "café Ågård.png"
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / unicodedata.normalize(form, name)).write_bytes(file_of("red", "png"))
    name = unicodedata.normalize(other, name)
    (tmp_path / "captions.jsonl").write_text(json.dumps({"image": name, "captions": ["a"]}))
    assert load_pairs(tmp_path, split="all", strict=True).images["image_id"][:] == [name]


def test_addresses_of_files_are_paths(folder, pairs_folder):
    """Their ids are relative to the table, as are those of absolute paths."""
    rows = rows_of(folder)
    (folder / "a b#1.png").write_bytes(file_of("orange", "png"))
    names = [(folder / row["image"]).as_uri() for row in rows[:2]] + [str(folder / row["image"]) for row in rows[2:4]]
    names += [(folder / "a b#1.png").as_uri(), str(pairs_folder / rows[5]["image"])]
    (folder / "rows.csv").write_text("\n".join(["image,caption", *(f"{name},a" for name in names)]))
    pairs = load_pairs(folder / "rows.csv", split="all", strict=True)
    expected = [row["image"] for row in rows[:4]] + ["a b#1.png", rows[5]["image"]]
    assert pairs.images["image_id"][:] == expected
    moved = folder.rename(folder.with_name("moved"))
    text = (moved / "rows.csv").read_text().replace(str(folder), str(moved))
    (moved / "rows.csv").write_text(text)
    assert load_pairs(moved / "rows.csv", split="all", strict=True).images["image_id"][:] == expected
