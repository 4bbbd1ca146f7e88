"""Bad rows are reported and left out, and the rest is images, captions and digests; `test_odd_files` has errors."""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import replace

import numpy as np
import PIL.Image
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, Features, Image, Value

from repair_hf.pairs.dataset import Pairs, Problem, load_pairs, load_wanted, loading_once
from repair_hf.pairs.wording import bare_caption
from repair_hf.runtime.options import PairsOptions, UserError
from tests.pairs.made_sources import as_dataset, content, kinds, rows_of, write


def test_every_kind_of_bad_row_is_reported_and_left_out(folder, caplog):
    rows = rows_of(folder)
    (folder / "red_circle.png").unlink()
    (folder / "red_square.png").write_bytes((folder / "red_square.png").read_bytes()[:-20])
    (folder / "red_triangle.png").write_bytes(b"not an image")
    rows[3]["captions"] = []
    rows[4]["captions"] = [" ", None]
    rows[5]["captions"] = ["", "what is left"]
    rows += [rows[6], {"image": "/etc/hostname", "captions": ["x"]}, {"image": "../a.png", "captions": ["x"]}]
    rows += [{"image": "absent.png", "captions": ["x"]}, {"image": "x" * 5000, "captions": ["x"]}]
    rows += ["{torn", {"image": rows[7]["image"], "captions": "a text alone"}, "", "[1]"]
    with caplog.at_level(logging.WARNING):
        pairs = load_pairs(write(folder, rows), split="all")
    of_images = {"missing_image": 4, "corrupt_image": 3, "image_without_captions": 2}
    assert kinds(pairs) == {"malformed_row": 2, "empty_caption": 3} | of_images
    examples = {problem.kind: problem.examples for problem in pairs.problems}
    assert examples["malformed_row"] == ("line 18", "line 21")
    assert examples["empty_caption"] == ("green_square.png#0", "green_square.png#1", "green_triangle.png#0")
    assert pairs.images["image_id"][:] == [row["image"] for row in rows[5:12]]
    assert pairs.captions[0] == {"caption_id": "green_triangle.png#1", "caption": "what is left", "image_index": 0}
    assert "a text alone" in pairs.captions["caption"][:]
    assert "Left out images that cannot be decoded: 3 ('red_square.png', 'red_triangle.png'," in caplog.text


def test_bad_rows_of_a_coco_file(pairs_folder, tmp_path):
    images = [{"id": k, "file_name": row["image"]} for k, row in enumerate(rows_of(pairs_folder))]
    annotations = [{"id": k, "image_id": k, "caption": f"caption {k}"} for k in range(12)]
    images += [{"id": 0, "file_name": "other.png"}, {"id": 99, "file_name": "absent.png"}]
    images += [{"id": 98}, {"id": 97, "file_name": "../x.png"}]
    annotations += [{"id": 0, "image_id": 5, "caption": "again"}, {"id": 50, "image_id": 77, "caption": "whose?"}]
    annotations += [{"id": 51, "image_id": 3}, {"id": 52, "image_id": 3, "caption": " "}]
    annotations += [{"id": 53, "image_id": 99, "caption": "of nothing"}]
    file = tmp_path / "captions.json"
    file.write_text(json.dumps({"images": images, "annotations": annotations}))
    pairs = load_pairs(file, image_folder=pairs_folder, split="all")
    single = dict.fromkeys(("unknown_image", "missing_image", "empty_caption", "image_without_captions"), 1)
    assert kinds(pairs) == {"malformed_row": 2, "duplicate_id": 2} | single
    assert len(pairs.images) == len(pairs.captions) == 12


def test_bad_rows_of_a_dataset(tmp_path):
    good = PIL.Image.new("RGB", (8, 8), "red")
    features = Features({"image": Image(), "caption": Value("string")})
    images = [good, None, {"bytes": b"broken"}, {"path": "http://127.0.0.1:1/x.png"}, good.resize((9, 9))]
    data = Dataset.from_dict({"image": images, "caption": ["a", "b", "c", "d", None]}, features=features)
    pq.write_table(data.data.table, tmp_path / "data.parquet")
    pairs = load_pairs(tmp_path, split="all")  # nothing is fetched from the address
    assert kinds(pairs) == {"missing_image": 2, "corrupt_image": 1, "empty_caption": 1, "image_without_captions": 1}
    assert pairs.images["image_id"][:] == ["train-0000000"]


def test_a_split_without_rows(pairs_folder):
    data = as_dataset(pairs_folder).add_column("shop", ["x"] * 12)
    parts = DatasetDict({"train": data, "test": data.select([])})
    assert len(load_pairs(parts, split="all", group="shop").images) == 12
    for options in ({}, {"group": "shop"}):
        with pytest.raises(UserError, match="holds no usable image with a caption: it is empty"):
            load_pairs(DatasetDict({"test": parts["test"]}), split="test", **options)


def test_a_missing_list_of_captions_in_a_second_split(pairs_folder):
    data, rows = as_dataset(pairs_folder), rows_of(pairs_folder)
    other = data.select(range(6, 12)).to_list()
    other[2]["caption"] = None
    parts = {"train": data.select(range(6)), "test": Dataset.from_list(other, features=data.features)}
    pairs = load_pairs(DatasetDict(parts), split="all")
    assert content(pairs) == {row["image"]: row["captions"] for k, row in enumerate(rows) if k != 8}
    assert [problem.examples for problem in pairs.problems] == [(f"{rows[8]['image']}#0",), (rows[8]["image"],)]


def test_strict_refuses(folder):
    assert load_pairs(folder, split="all", strict=True).problems == ()
    (folder / "red_circle.png").unlink()
    with pytest.raises(UserError, match=r"has images that do not exist: 1 \('red_circle.png'\). Repair them"):
        load_pairs(folder, split="all", strict=True)


def test_images_of_other_splits_are_not_looked_at(folder):
    rows = rows_of(folder)
    (folder / "red_circle.png").unlink()
    write(folder, [rows[0] | {"split": "test"}, rows[1] | {"split": "train"}])
    assert load_pairs(folder, strict=True).images["image_id"][:] == ["red_square.png"]


def test_a_dataset_of_the_hub_names_no_file_of_this_machine(pairs_folder, tmp_path, monkeypatch):
    """Paths in a downloaded dataset must not read files of this machine, which could reach an LLM provider."""
    paths = sorted(map(str, pairs_folder.glob("*.png")))[:2]
    rows = Dataset.from_dict({"image": paths, "caption": ["one", "two"]}).cast_column("image", Image())
    monkeypatch.setattr("repair_hf.pairs.sources.load_pairs_of", lambda *named: rows)
    assert len(load_pairs(tmp_path, split="all").images) == 2  # a folder of one's own
    remedy = "images that are no files of their dataset; if you trust it, download"
    with pytest.raises(UserError, match=f"`me/photos` holds no usable image.*{remedy}"):
        load_pairs("me/photos", split="all")


def test_a_problem_shows_names_as_they_are_and_escape_codes_escaped():
    problem = Problem("missing_image", 5, ("\x1b[31mred.png", "Été.png"))
    assert str(problem) == "images that do not exist: 5 ('\\x1b[31mred.png', 'Été.png', ...)"


def test_several_warnings_are_said_in_full_once_and_then_in_one_line(folder, caplog):
    rows = rows_of(folder)
    rows[0]["image"], rows[1]["captions"] = "Été.png", [""]
    lines = []
    for number in range(3):
        if number == 2:
            rows[2]["captions"] = [""]
        caplog.clear()
        load_pairs(write(folder, rows), split="all")
        lines.append([line.message for line in caplog.records if line.levelname == "WARNING"])
    assert len(lines[0]) == len(lines[2]) == 3 and "images that do not exist: 1 ('Été.png')" in caplog.text
    assert lines[1] == [f"{lines[0][0]} The other warnings (2) are those of an earlier command."]


def test_a_dataset_in_memory_is_told_of_its_own_arguments(pairs_folder):
    for name in ("image", "caption", "image_id"):
        with pytest.raises(UserError, match=f"has no column `x`; .*Set `{name}`."):
            Pairs.from_dataset(as_dataset(pairs_folder), **{name: "x"})


def test_images_are_upright_rgb_and_transparent_ones_get_a_white_background(tmp_path):
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


def test_fingerprint_is_of_the_content_wherever_it_lies(folder, tmp_path, monkeypatch):
    before = load_pairs(folder, split="all").fingerprint
    os.utime(folder / "red_circle.png", (1, 1))
    shutil.copytree(folder, tmp_path / "copy")
    (tmp_path / "copy").rename(tmp_path / "renamed")
    monkeypatch.chdir(tmp_path)
    for source in (folder, tmp_path / "renamed", "renamed"):
        assert load_pairs(source, split="all").fingerprint == before
    rows = rows_of(folder)
    rows[0]["captions"][0] += "!"
    of_captions = load_pairs(write(folder, rows), split="all").fingerprint
    (folder / "red_circle.png").write_bytes((folder / "blue_square.png").read_bytes())
    assert len({before, of_captions, load_pairs(folder, split="all").fingerprint}) == 3


def test_commands_that_follow_each_other_load_equal_pairs_once(folder):
    whole, part = (PairsOptions(str(folder), split="all", max_captions=most) for most in (None, 1))
    with loading_once():
        pairs = load_wanted(whole)
        assert load_wanted(part, "all") is not pairs is load_wanted(replace(part, max_captions=None))
    assert load_wanted(whole) is not pairs
    assert load_wanted(whole).fingerprint == pairs.fingerprint


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
def test_captions_of_equal_text(one, other):
    assert bare_caption(one) == bare_caption(other)
    assert bare_caption("a red, circle") != bare_caption("a red circle")
