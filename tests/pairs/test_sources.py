"""Every kind of source gives the same pairs, with its own splits or splits by hash."""

from __future__ import annotations

import json
import re

import PIL.Image
import PIL.ImageColor
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Image, concatenate_datasets

from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from tests.pairs.made_sources import as_dataset, content, each, rows_of, write


def test_folder(pairs_folder):
    pairs = load_pairs(pairs_folder, split="all")
    assert content(pairs) == {row["image"]: row["captions"] for row in rows_of(pairs_folder)}
    caption = "the picture shows one square, painted red"
    assert pairs.captions[3] == {"caption_id": "red_square.png#1", "caption": caption, "image_index": 1}
    assert pairs.caption_image.tolist() == [k // 2 for k in range(24)]
    assert pairs.captions_of(4) == [8, 9]
    assert pairs.problems == ()
    image = pairs.images[0]["image"]
    assert (image.mode, image.size, image.getpixel((24, 20))) == ("RGB", (48, 40), (255, 0, 0))


def test_a_row_without_a_name_among_others_with_one_is_an_image_of_its_own(tmp_path):
    colors = ("red", "green", "blue", "white", "red")
    columns = {
        "image": [PIL.Image.new("RGB", (8, 8), color) for color in colors],
        "caption": list(colors),
        "image_id": ["x", None, "", None, "x"],
    }
    Dataset.from_dict(columns).save_to_disk(tmp_path / "data")
    pairs = load_pairs(tmp_path / "data", split="all", strict=True)
    unnamed = {"train-0000001": ["green"], "train-0000002": ["blue"], "train-0000003": ["white"]}
    assert content(pairs) == {"x": ["red", "red"]} | unnamed


def test_ids_that_are_numbered_in_each_split_name_different_images(tmp_path):
    def part(split: str, *colors: str) -> Dataset:
        columns = {
            "image": [PIL.Image.new("RGB", (8, 8), color) for color in colors],
            "caption": [f"{color} of {split}" for color in colors],
            "image_id": list(range(len(colors))),
        }
        return Dataset.from_dict(columns)

    parts = DatasetDict(
        {"train": part("train", "red", "green", "blue"), "test": part("test", "white", "lime", "blue")}
    )
    pairs = load_pairs(parts, split="all", strict=True)
    assert content(pairs) == {
        "train/0": ["red of train"],
        "train/1": ["green of train"],
        "2": ["blue of train", "blue of test"],  # the same image
        "test/0": ["white of test"],
        "test/1": ["lime of test"],
    }
    found = [image.getpixel((0, 0)) for image in pairs.images["image"]]
    assert found == [PIL.ImageColor.getrgb(texts[0].split()[0]) for texts in content(pairs).values()]


@pytest.mark.parametrize("column", ["filename", "image_id"])
def test_one_id_for_different_pictures_is_an_id_for_each(tmp_path, caplog, column):
    """`0.png` in the folder of every class, each picture in two rows; a copy of other bytes is the same picture."""
    rows = []
    for color in ("red", "green", "blue"):
        (tmp_path / color).mkdir()
        PIL.Image.new("RGB", (8, 8), color).save(tmp_path / color / "0.png")
        rows += [{"image": f"{color}/0.png", column: "0.png", "caption": f"{color} {k}"} for k in range(2)]
    PIL.Image.new("RGB", (8, 8), "red").save(tmp_path / "copy.png", compress_level=0)
    rows += [{"image": "copy.png", column: "0.png", "caption": "red copy"}]
    rows += [{"image": "absent.png", column: "0.png", "caption": "absent"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pairs = load_pairs(tmp_path / "rows.jsonl", split="all")
    found = content(pairs)
    assert list(found.values()) == [["red 0", "red 1", "red copy"], ["green 0", "green 1"], ["blue 0", "blue 1"]]
    assert list(found)[0] == "0.png" and len(set(found)) == 3
    for image, captions in zip(pairs.images["image"], found.values(), strict=True):
        assert image.getpixel((0, 0)) == PIL.ImageColor.getrgb(captions[0].split()[0])
    (warning, _) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert "1, such as '0.png' for 4 images" in warning and "image_id_column" in warning
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows if "green" not in row["caption"]))
    assert set(content(load_pairs(tmp_path / "rows.jsonl", split="all"))) < set(found)  # ids stay when rows go
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows if "red" in row["caption"]))
    caplog.clear()
    assert list(content(load_pairs(tmp_path / "rows.jsonl", split="all"))) == ["0.png"]
    assert "several images" not in caplog.text


def test_a_folder_may_be_called_like_a_reader_of_datasets(pairs_folder, tmp_path, monkeypatch):
    (tmp_path / "parquet").mkdir()
    as_dataset(pairs_folder).to_parquet(tmp_path / "parquet" / "train.parquet")
    (tmp_path / "other.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert len(load_pairs("parquet", split="all", image_folder=pairs_folder).images) == 12


def test_own_splits(folder):
    rows = rows_of(folder)
    write(folder, [row | {"split": "test" if k < 3 else "train"} for k, row in enumerate(rows)])
    assert len(load_pairs(folder).images) == 9
    assert load_pairs(folder, split="test").images["image_id"][:] == [row["image"] for row in rows[:3]]
    assert len(load_pairs(folder, split="all").images) == 12
    with pytest.raises(UserError, match=r"no image in split `dev`; it has \['test', 'train'\]"):
        load_pairs(folder, split="dev")


def test_splits_of_a_dataset(pairs_folder, tmp_path):
    data = as_dataset(pairs_folder)
    DatasetDict({"train": data.select(range(8)), "val": data.select(range(8, 12))}).save_to_disk(tmp_path / "two")
    assert load_pairs(tmp_path / "two", split="val").images["image_id"][0] == "blue_triangle.png"
    assert len(load_pairs(tmp_path / "two").images) == 8
    assert len(load_pairs(tmp_path / "two", split="all").images) == 12
    names = ClassLabel(names=["test", "train"])
    DatasetDict({"test": data.add_column("split", [0] * 5 + [1] * 7, feature=names)}).save_to_disk(tmp_path / "column")
    assert len(load_pairs(tmp_path / "column", split="test").images) == 5
    assert len(load_pairs(tmp_path / "column").images) == 7
    data.add_column("split", [0] * 5 + [1] * 7).save_to_disk(tmp_path / "numbers")
    assert len(load_pairs(tmp_path / "numbers", split="1").images) == 7
    concatenate_datasets([data] * 5).save_to_disk(tmp_path / "none")
    assert len(load_pairs(tmp_path / "none", split="all").images) == 12  # a photograph in five rows is one image


def test_splits_by_hash_and_their_warning_do_not_depend_on_the_layout(pairs_folder, folder, caplog):
    """`test_layouts` has many layouts, without splits."""
    source = folder / "rows.parquet"
    each([(row["image"], row["captions"]) for row in rows_of(folder)]).to_parquet(source)
    caplog.set_level("INFO")
    for split in ("all", "train", "validation", "test"):
        found = content(load_pairs(source, split=split, strict=True))
        assert found == content(load_pairs(pairs_folder, split=split)) != {}
    warnings = [line.message for line in caplog.records if line.levelname == "WARNING" and str(source) in line.message]
    assert [re.findall(r"\d+ of 12|9 / 2 / 1|--split all", line) for line in warnings] == [
        [f"{count} of 12", "9 / 2 / 1", "--split all"] for count in (9, 2, 1)
    ]  # not for `all`
    assert f"{source}: merged 24 rows into 12 images; each keeps all of its captions." in caplog.messages


def test_a_column_for_each_caption(folder):
    rows = rows_of(folder)
    columns = {f"caption_{k}": [row["captions"][k] for row in rows] for k in range(2)}
    Dataset.from_dict({"photo": [row["image"] for row in rows]} | columns).to_parquet(folder / "rows.parquet")
    pairs = load_pairs(
        folder / "rows.parquet", split="all", image_column="photo", caption_column="caption_0, caption_1"
    )
    assert content(pairs) == {row["image"]: row["captions"] for row in rows}


@pytest.mark.parametrize("stored", ["bytes", "paths"])
def test_a_photograph_in_several_rows_is_one_image(folder, tmp_path, stored):
    names = ["red_circle.png", "blue_circle.png", "red_circle.png"]
    images = [str(folder / name) if stored == "paths" else PIL.Image.open(folder / name) for name in names]
    data = Dataset.from_dict({"image": images, "caption": ["a", "b", "c"], "id": [7, 8, 9]})
    data.cast_column("image", Image()).save_to_disk(tmp_path / "rows")

    def loaded(**options) -> dict[str, list[str]]:
        return content(load_pairs(tmp_path / "rows", split="all", image_folder=folder, **options))

    assert loaded() == {"red_circle.png": ["a", "c"], "blue_circle.png": ["b"]}  # `id` numbers the captions here
    assert loaded(image_id_column="id") == {"7": ["a", "c"], "8": ["b"]}
    for found_by_itself in ("image_id", "filename", "cocoid", "id"):  # it repeats with the image
        named = data.remove_columns("id").add_column(found_by_itself, [7, 8, 7])
        named.cast_column("image", Image()).save_to_disk(tmp_path / found_by_itself)
        merged = load_pairs(tmp_path / found_by_itself, split="all", image_folder=folder)
        assert content(merged) == {"7": ["a", "c"], "8": ["b"]}
    both = data.select([0, 1, 2, 2]).remove_columns("id").add_column("id", [7, 8, 9, 9])  # one photograph, two numbers
    both.cast_column("image", Image()).save_to_disk(tmp_path / "both")
    merged = load_pairs(tmp_path / "both", split="all", image_folder=folder)
    assert content(merged) == {"red_circle.png": ["a", "c", "c"], "blue_circle.png": ["b"]}
    write(folder, [{"image": "red_circle.png", "captions": [text]} for text in "ab"])
    assert content(load_pairs(folder, split="all", strict=True)) == {"red_circle.png": ["a", "b"]}


def test_an_image_in_several_splits_is_named(folder, caplog):
    rows = [("red_circle.png", "train"), ("blue_circle.png", "test"), ("red_circle.png", "test")]
    write(folder, [{"image": name, "captions": ["a"], "split": split} for name, split in rows])
    assert content(load_pairs(folder, split="test")) == {"blue_circle.png": ["a"]}
    (message,) = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert "1 images stand in several splits, such as 'red_circle.png' in test and train" in message
