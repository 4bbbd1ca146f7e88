"""Every source gives the same pairs; every kind of bad row is told, dropped or refused; splits and digests."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, List, Value, concatenate_datasets

from repair_hf.pairs.dataset import Pairs, Problem, bare_caption, load_pairs
from repair_hf.runtime.options import UserError


@pytest.fixture
def folder(pairs_folder, tmp_path) -> Path:
    """A copy of `pairs_folder` that a test may spoil."""
    shutil.copytree(pairs_folder, tmp_path / "data")
    return tmp_path / "data"


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]


def write(folder: Path, rows: list[dict | str]) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder


def as_dataset(folder: Path) -> Dataset:
    rows = rows_of(folder)
    columns = {"image": [str(folder / row["image"]) for row in rows], "caption": [row["captions"] for row in rows]}
    return Dataset.from_dict(columns, features=Features({"image": Image(), "caption": List(Value("string"))}))


def content(pairs: Pairs) -> dict[str, list[str]]:
    found = {image_id: [] for image_id in pairs.images["image_id"]}
    for row in pairs.captions:
        found[pairs.images["image_id"][row["image_index"]]].append(row["caption"])
    return found


def kinds(pairs: Pairs) -> dict[str, int]:
    return {problem.kind: problem.count for problem in pairs.problems}


# What a source gives


def test_folder(pairs_folder):
    pairs = load_pairs(pairs_folder, split="all")
    assert content(pairs) == {row["image"]: row["captions"] for row in rows_of(pairs_folder)}
    assert pairs.captions[3] == {
        "caption_id": "red_square.png#1",
        "caption": "the picture shows one square, painted red",
        "image_index": 1,
    }
    assert pairs.caption_image.tolist() == [k // 2 for k in range(24)]
    assert pairs.captions_of(4) == [8, 9]
    assert pairs.problems == ()
    image = pairs.images[0]["image"]
    assert (image.mode, image.size, image.getpixel((24, 20))) == ("RGB", (48, 40), (255, 0, 0))


def test_folder_with_images_in_a_folder_of_their_own(folder):
    (folder / "images").mkdir()
    for file in folder.glob("*.png"):
        file.rename(folder / "images" / file.name)
    assert len(load_pairs(folder, split="all").images) == 12


def test_coco(pairs_folder, tmp_path):
    rows = rows_of(pairs_folder)
    images = [{"id": 7 * k, "file_name": row["image"]} for k, row in enumerate(rows)]
    annotations = [
        {"id": 100 * k + place, "image_id": 7 * k, "caption": caption + "\n"}
        for place in (0, 1)
        for k, row in enumerate(rows)
        for caption in [row["captions"][place]]
    ]
    file = tmp_path / "captions.json"
    file.write_text(json.dumps({"images": images, "annotations": annotations}))
    pairs = load_pairs(file, image_folder=pairs_folder, split="all")
    assert content(pairs) == content(load_pairs(pairs_folder, split="all"))
    assert pairs.captions["caption_id"][:2] == ["red_circle.png#0", "red_circle.png#1"]


@pytest.mark.parametrize("form", ["saved", "parquet folder", "strings with image_id"])
def test_dataset(pairs_folder, tmp_path, form):
    data = as_dataset(pairs_folder)
    if form == "saved":
        data.save_to_disk(tmp_path / "data")
    elif form == "parquet folder":
        (tmp_path / "data").mkdir()
        data.to_parquet(tmp_path / "data" / "train.parquet")
    else:
        rows = [(name, row["image"], caption) for name, row in enumerate(data) for caption in row["caption"]]
        columns = {
            "image_id": [row[0] for row in rows],
            "image": [row[1] for row in rows],
            "caption": [row[2] for row in rows],
        }
        Dataset.from_dict(columns).save_to_disk(tmp_path / "data")
    pairs = load_pairs(tmp_path / "data", split="all")
    assert list(content(pairs).values()) == [row["captions"] for row in rows_of(pairs_folder)]
    named = [str(k) for k in range(12)] if form.startswith("strings") else [f"train-{k:07d}" for k in range(12)]
    assert pairs.images["image_id"][:] == named
    assert pairs.images[0]["image"].getpixel((24, 20)) == (255, 0, 0)


def test_rows_of_a_dataset_without_ids_stay_apart(tmp_path):
    image = PIL.Image.new("RGB", (8, 8))
    Dataset.from_dict({"image": [image, image], "caption": ["a", "b"]}).save_to_disk(tmp_path / "data")
    assert list(content(load_pairs(tmp_path / "data", split="all")).values()) == [["a"], ["b"]]


def test_a_row_without_a_name_among_others_with_one_is_an_image_of_its_own(tmp_path):
    colors = ("red", "green", "blue", "white", "red")
    columns = {
        "image": [PIL.Image.new("RGB", (8, 8), color) for color in colors],
        "caption": list(colors),
        "image_id": ["x", None, "", None, "x"],
    }
    Dataset.from_dict(columns).save_to_disk(tmp_path / "data")
    pairs = load_pairs(tmp_path / "data", split="all", strict=True)
    assert content(pairs) == {
        "x": ["red", "red"],
        "train-0000001": ["green"],
        "train-0000002": ["blue"],
        "train-0000003": ["white"],
    }


@pytest.mark.parametrize("form", ["splits", "a column of splits"])
def test_ids_that_are_numbered_in_each_split_name_different_images(tmp_path, form):
    def part(split: str, colors: dict[int, str]) -> Dataset:
        columns = {
            "image": [PIL.Image.new("RGB", (8, 8), color) for color in colors.values()],
            "caption": [f"{color} of {split}" for color in colors.values()],
            "image_id": list(colors),
        }
        return Dataset.from_dict(columns | ({} if form == "splits" else {"split": [split] * len(colors)}))

    parts = {"train": part("train", {0: "red", 1: "green", 2: "blue"}), "test": part("test", {0: "white", 2: "blue"})}
    if form != "splits":
        parts = {"train": concatenate_datasets(list(parts.values()))}
    DatasetDict(parts).save_to_disk(tmp_path / "data")
    pairs = load_pairs(tmp_path / "data", split="all", strict=True)
    assert content(pairs) == {
        "train/0": ["red of train"],
        "1": ["green of train"],
        "2": ["blue of train", "blue of test"],  # the same image
        "test/0": ["white of test"],
    }
    assert [image.getpixel((0, 0)) for image in pairs.images["image"]][::3] == [(255, 0, 0), (255, 255, 255)]


def test_images_are_upright_rgb_and_transparent_ones_lie_on_white(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (8, 12, 4), dtype=np.uint8)
    clear = PIL.Image.fromarray(noise, "RGBA")
    clear.save(tmp_path / "rgba.png")
    exif = PIL.Image.Exif()
    exif[PIL.Image.ExifTags.Base.Orientation] = 6
    PIL.Image.fromarray(noise[..., :3]).save(tmp_path / "turned.png", exif=exif)
    PIL.Image.fromarray(noise[..., 0]).save(tmp_path / "grey.png")
    write(tmp_path, [{"image": name, "captions": ["a"]} for name in ("turned.png", "rgba.png", "grey.png")])
    turned, rgba, grey = load_pairs(tmp_path, split="all").images["image"]
    assert {image.mode for image in (turned, rgba, grey)} == {"RGB"}
    assert (turned.size, grey.size) == ((8, 12), (12, 8))
    white = PIL.Image.new("RGBA", clear.size, "white")
    np.testing.assert_array_equal(np.asarray(rgba), np.asarray(PIL.Image.alpha_composite(white, clear).convert("RGB")))


# Splits


def test_own_splits(folder):
    rows = rows_of(folder)
    write(folder, [row | {"split": "test" if k < 3 else "train"} for k, row in enumerate(rows)])
    assert len(load_pairs(folder).images) == 9
    assert load_pairs(folder, split="test").images["image_id"][:] == [row["image"] for row in rows[:3]]
    assert len(load_pairs(folder, split="all").images) == 12
    with pytest.raises(UserError, match=r"no image in split `dev`; it has \['test', 'train'\]"):
        load_pairs(folder, split="dev")


def test_splits_by_hash_stay_when_images_come_and_go(tmp_path):
    rows = [{"image": f"{k}.png", "captions": ["a"]} for k in range(300)]
    for row in rows:
        PIL.Image.new("RGB", (4, 4)).save(tmp_path / row["image"])
    write(tmp_path, rows)
    parts = {
        split: set(load_pairs(tmp_path, split=split).images["image_id"]) for split in ("train", "validation", "test")
    }
    assert sum(map(len, parts.values())) == len(set.union(*parts.values())) == 300
    assert len(parts["train"]) > 200
    assert min(map(len, parts.values())) > 15
    write(tmp_path, rows[100:])
    kept = {row["image"] for row in rows[100:]}
    assert all(
        set(load_pairs(tmp_path, split=split).images["image_id"]) == part & kept for split, part in parts.items()
    )


def test_splits_of_a_dataset(pairs_folder, tmp_path):
    data = as_dataset(pairs_folder)
    DatasetDict({"train": data.select(range(8)), "val": data.select(range(8, 12))}).save_to_disk(tmp_path / "two")
    assert load_pairs(tmp_path / "two", split="val").images["image_id"][0] == "val-0000000"
    assert len(load_pairs(tmp_path / "two").images) == 8
    assert len(load_pairs(tmp_path / "two", split="all").images) == 12
    names = ClassLabel(names=["test", "train"])
    DatasetDict({"test": data.add_column("split", [0] * 5 + [1] * 7, feature=names)}).save_to_disk(tmp_path / "column")
    assert len(load_pairs(tmp_path / "column", split="test").images) == 5
    assert len(load_pairs(tmp_path / "column").images) == 7
    concatenate_datasets([data] * 5).save_to_disk(tmp_path / "none")
    assert 30 < len(load_pairs(tmp_path / "none").images) < 60


# Bad input


def test_every_kind_of_bad_row_is_told_and_left_out(folder, caplog):
    rows = rows_of(folder)
    (folder / "red_circle.png").unlink()
    (folder / "red_square.png").write_bytes((folder / "red_square.png").read_bytes()[:-20])
    (folder / "red_triangle.png").write_bytes(b"not an image")
    rows[3]["captions"] = []
    rows[4]["captions"] = [" ", None]
    rows[5]["captions"] = ["", "what is left"]
    rows += [rows[6], {"image": "/etc/hostname", "captions": ["x"]}, {"image": "../a.png", "captions": ["x"]}]
    rows += [{"image": "absent.png", "captions": ["x"]}, {"image": "x" * 5000, "captions": ["x"]}]
    rows += ["{torn", '{"image": 3, "captions": []}', '{"image": "a.png", "captions": "a"}', "", "[1]"]
    with caplog.at_level(logging.WARNING):
        pairs = load_pairs(write(folder, rows), split="all")
    assert kinds(pairs) == {
        "malformed_row": 4,
        "duplicate_id": 1,
        "outside_folder": 2,
        "missing_image": 3,
        "corrupt_image": 2,
        "empty_caption": 3,
        "image_without_captions": 2,
    }
    examples = {problem.kind: problem.examples for problem in pairs.problems}
    assert examples["malformed_row"] == ("line 18", "line 19", "line 20")
    assert examples["empty_caption"] == ("green_square.png#0", "green_square.png#1", "green_triangle.png#0")
    assert pairs.images["image_id"][:] == [row["image"] for row in rows[5:12]]
    assert pairs.captions[0] == {"caption_id": "green_triangle.png#1", "caption": "what is left", "image_index": 0}
    assert "left out 2 images that cannot be decoded ('red_square.png', 'red_triangle.png')" in caplog.text


def test_bad_rows_of_a_coco_file(pairs_folder, tmp_path):
    images = [{"id": k, "file_name": row["image"]} for k, row in enumerate(rows_of(pairs_folder))]
    annotations = [{"id": k, "image_id": k, "caption": f"caption {k}"} for k in range(12)]
    images += [
        {"id": 0, "file_name": "other.png"},
        {"id": 99, "file_name": "absent.png"},
        {"id": 98},
        {"id": 97, "file_name": "../x.png"},
    ]
    annotations += [
        {"id": 0, "image_id": 5, "caption": "again"},
        {"id": 50, "image_id": 77, "caption": "whose?"},
        {"id": 51, "image_id": 3},
    ]
    annotations += [{"id": 52, "image_id": 3, "caption": " "}, {"id": 53, "image_id": 99, "caption": "of nothing"}]
    file = tmp_path / "captions.json"
    file.write_text(json.dumps({"images": images, "annotations": annotations}))
    pairs = load_pairs(file, image_folder=pairs_folder, split="all")
    assert kinds(pairs) == {
        "malformed_row": 2,
        "duplicate_id": 2,
        "outside_folder": 1,
        "unknown_image": 1,
        "missing_image": 1,
        "empty_caption": 1,
    }
    assert len(pairs.images) == len(pairs.captions) == 12


def test_bad_rows_of_a_dataset(tmp_path):
    good = PIL.Image.new("RGB", (8, 8), "red")
    features = Features({"image": Image(), "caption": Value("string")})
    images = [
        good,
        None,
        {"bytes": b"broken", "path": None},
        {"bytes": None, "path": "http://127.0.0.1:1/x.png"},
        good,
    ]
    data = Dataset.from_dict({"image": images, "caption": ["a", "b", "c", "d", None]}, features=features)
    pq.write_table(data.data.table, tmp_path / "data.parquet")
    pairs = load_pairs(tmp_path, split="all")  # nothing is fetched from the address
    assert kinds(pairs) == {"missing_image": 2, "corrupt_image": 1, "empty_caption": 1, "image_without_captions": 1}
    assert pairs.images["image_id"][:] == ["train-0000000"]


def test_images_without_a_split_among_others_with_one(folder):
    rows = rows_of(folder)
    pairs = load_pairs(write(folder, [rows[0] | {"split": "train"}, rows[1]]))
    assert (len(pairs.images), kinds(pairs)) == (1, {"no_split": 1})


def test_strict_refuses(folder):
    assert load_pairs(folder, split="all", strict=True).problems == ()
    (folder / "red_circle.png").unlink()
    with pytest.raises(UserError, match=r"has 1 image that does not exist \('red_circle.png'\). Mend them"):
        load_pairs(folder, split="all", strict=True)


def test_images_of_other_splits_are_not_looked_at(folder):
    rows = rows_of(folder)
    (folder / "red_circle.png").unlink()
    write(folder, [rows[0] | {"split": "test"}, rows[1] | {"split": "train"}])
    assert load_pairs(folder, strict=True).images["image_id"][:] == ["red_square.png"]


def test_nothing_usable(folder, tmp_path):
    for file in folder.glob("*.png"):
        file.unlink()
    with pytest.raises(UserError, match="holds no usable image with a caption: 12 images that do not exist"):
        load_pairs(folder, split="all")
    (folder / "captions.jsonl").write_text("")
    with pytest.raises(UserError, match="it is empty"):
        load_pairs(folder)


def test_a_dataset_of_the_hub_names_no_file_of_this_machine(pairs_folder, monkeypatch):
    """Its rows say by which path an image is found; what a stranger's say must not go to a provider or back to the Hub."""
    paths = sorted(map(str, pairs_folder.glob("*.png")))[:2]
    rows = Dataset.from_dict({"image": paths, "caption": ["one", "two"]}).cast_column("image", Image())
    monkeypatch.setattr("repair_hf.pairs.sources.load_any", lambda source: rows)
    assert len(load_pairs(str(pairs_folder.parent), split="all").images) == 2  # a folder of one's own
    with pytest.raises(UserError, match="`me/photos` holds no usable image.*2 images named by an absolute path"):
        load_pairs("me/photos", split="all")


def test_a_column_of_splits_may_hold_numbers(pairs_folder, monkeypatch):
    rows = Dataset.from_dict(
        {"image": [*map(str, pairs_folder.glob("*.png"))][:2], "caption": ["a", "b"], "split": [0, 1]}
    )
    rows = rows.cast_column("image", Image())
    monkeypatch.setattr("repair_hf.pairs.sources.load_any", lambda source: rows)
    assert load_pairs(str(pairs_folder.parent), split="1").captions["caption"][:] == ["b"]


def test_options_of_another_kind_of_source_are_refused(pairs_folder, tmp_path):
    with pytest.raises(UserError, match="`image_folder` .* is for a caption JSON"):
        load_pairs(pairs_folder, image_folder=pairs_folder)
    with pytest.raises(UserError, match="`image_column` image and `caption_column` text are for a dataset"):
        load_pairs(pairs_folder, caption_column="text")


def test_a_script_in_place_of_data_is_said_in_a_line(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "photos.py").write_text("")
    with pytest.raises(UserError, match="cannot be loaded as a dataset: Dataset scripts are no longer supported"):
        load_pairs(tmp_path / "photos")


def test_refuses_what_is_no_source(pairs_folder, tmp_path):
    with pytest.raises(UserError, match="absent.json` does not exist"):
        load_pairs(tmp_path / "absent.json")
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(UserError, match="`image_folder` must be the folder of the images"):
        load_pairs(tmp_path / "list.json")
    with pytest.raises(UserError, match="needs the lists `images` and `annotations`"):
        load_pairs(tmp_path / "list.json", image_folder=pairs_folder)
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load_pairs(tmp_path / "torn.json", image_folder=pairs_folder)
    with pytest.raises(
        UserError, match=r"is no file or folder here, and cannot be loaded as a dataset: .*[^.]\. Give a folder"
    ):
        load_pairs(tmp_path / "absent")
    with pytest.raises(
        UserError, match="captions.jsonl` is a file; only a caption JSON .* Give the folder that it lies in"
    ):
        load_pairs(pairs_folder / "captions.jsonl")


def test_captions_of_another_form_are_told_the_form(folder):
    (folder / "captions.jsonl").write_text('\n{"image": "0.png", "caption": "a \\u00e9"}\n{"image": "1.png"}\n')
    with pytest.raises(
        UserError,
        match=r'no line of .* is of the form {"image": "x.jpg", .*; the first is .{"image": "0.png", "caption"',
    ):
        load_pairs(folder)


def test_a_folder_may_be_called_like_a_reader_of_datasets(pairs_folder, tmp_path, monkeypatch):
    (tmp_path / "parquet").mkdir()
    as_dataset(pairs_folder).to_parquet(tmp_path / "parquet" / "train.parquet")
    (tmp_path / "other.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert len(load_pairs("parquet", split="all").images) == 12


def test_refuses_columns_that_do_not_fit(pairs_folder, tmp_path):
    data = as_dataset(pairs_folder)
    data.rename_column("caption", "text").save_to_disk(tmp_path / "renamed")
    with pytest.raises(
        UserError, match=r"no column `caption`; it has \['image', 'text'\]. Name yours by `caption_column`"
    ):
        load_pairs(tmp_path / "renamed")
    assert len(load_pairs(tmp_path / "renamed", caption_column="text", split="all").captions) == 24
    Dataset.from_dict({"image": ["a.png"], "caption": ["a"]}).save_to_disk(tmp_path / "paths")
    with pytest.raises(UserError, match="cast it to `datasets.Image"):
        load_pairs(tmp_path / "paths")
    data.map(
        lambda row: {"caption": len(row["caption"])}, features=Features({"image": Image(), "caption": Value("int64")})
    ).save_to_disk(tmp_path / "numbers")
    with pytest.raises(UserError, match="must hold a string or a list of strings"):
        load_pairs(tmp_path / "numbers")


def test_a_problem_shows_names_escaped():
    problem = Problem("missing_image", 5, ("\x1b[31mred.png", "b.png"))
    assert str(problem) == "5 images that do not exist ('\\x1b[31mred.png', 'b.png', ...)"


# Digests


def test_fingerprint_changes_with_captions_images_and_files(folder):
    first = load_pairs(folder, split="all")
    before = first.fingerprint
    assert load_pairs(folder, split="all").fingerprint == before
    status = (folder / "red_circle.png").stat()
    os.utime(folder / "red_circle.png", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert first.fingerprint != before  # of pairs that are loaded, too
    before = first.fingerprint
    rows = rows_of(folder)
    rows[0]["captions"][0] += "!"
    assert load_pairs(write(folder, rows), split="all").fingerprint != before


def test_fingerprint_of_embedded_images_goes_by_their_bytes(tmp_path):
    def pairs(name: str, colour: str) -> Pairs:
        images = [PIL.Image.new("RGB", (8, 8), colour)]
        Dataset.from_dict({"image": images, "caption": ["a"]}).save_to_disk(tmp_path / name)
        return load_pairs(tmp_path / name, split="all")

    assert pairs("one", "red").fingerprint == pairs("two", "red").fingerprint != pairs("three", "blue").fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A  red circle.", "a red circle"),
        ("Straße!?", "STRASSE"),
        (" a\tb ", "a b"),
        ("两只狗在跑。", "两只狗在跑"),
        ("a cafe\u0301", "a café"),
        ("a man’s hat", "a man's hat"),
    ],
)
def test_captions_that_say_the_same(one, other):
    assert bare_caption(one) == bare_caption(other)


def test_captions_that_do_not():
    assert bare_caption("a red, circle") != bare_caption("a red circle")
