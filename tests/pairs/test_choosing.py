"""The split and the draw of an image never change: a new release must not move a test image into training."""

import json
import shutil

import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, Image, concatenate_datasets

from repair_hf.pairs.cells import equal_cells
from repair_hf.pairs.choosing import draw_images, rows_of_split
from repair_hf.pairs.dataset import load_pairs
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.rows import Listing, Row, image_files

ROWS = [Row(place, f"{place:012d}.jpg", place, ["a caption"]) for place in range(30)]


def places(split: str, rows: list[Row]) -> list[int]:
    listing = Listing(image_files([None] * len(rows)), rows)
    return [row.image for row in rows_of_split(listing, (split,), None, Problems(), "photographs")]


def test_images_are_split_by_the_same_hash_as_ever():
    assert places("validation", ROWS) == [4, 5, 18, 27] and places("test", ROWS) == [1, 9]
    assert places("train", ROWS) == sorted(set(range(30)) - {1, 4, 5, 9, 18, 27})


def test_an_image_keeps_its_split_when_others_come_or_go():
    assert places("test", ROWS[5:]) == [9] and places("validation", ROWS[::-1]) == [27, 18, 5, 4]


def test_images_of_a_group_stay_together():
    grouped = [row._replace(group=ROWS[row.image % 3 + 3].image_id) for row in ROWS]  # groups 3, 4 and 5
    assert places("train", grouped) == list(range(0, 30, 3))
    assert places("validation", grouped) == [place for place in range(30) if place % 3]


def test_the_same_images_are_drawn_as_ever_and_a_larger_draw_contains_every_smaller_one():
    drawn = [row.image for row in draw_images(ROWS, 10)]
    assert drawn == [0, 4, 6, 7, 8, 11, 14, 19, 22, 24]
    assert {row.image for row in draw_images(ROWS, 4)} < set(drawn) and draw_images(ROWS, None) == ROWS


def test_files_and_bytes_are_equal_if_all_of_their_bytes_are(tmp_path):
    rng = np.random.default_rng(0)
    plain = rng.bytes(20_000)
    contents = [plain, plain, b"", plain[:-1] + b"x", b"x" + plain[1:], plain[:-1], plain, b"", b"one", b"two"]
    for place, content in enumerate(contents):
        (tmp_path / f"{place}.png").write_bytes(content)
    paths = [f"{tmp_path}/{place}.png" for place in range(len(contents))]
    paths += [paths[3], f"{tmp_path}/./4.png", f"{tmp_path}/absent.png", f"{tmp_path}//absent.png", str(tmp_path), ""]
    cells = [{"bytes": content, "path": "x.png"} for content in contents] + [None, None]
    features = image_files([]).features
    stored = Dataset.from_dict({"image": cells}, features=features).cast_column("image", Image())
    found = equal_cells(concatenate_datasets([image_files(paths), stored.cast(features)]), "image")
    keys = [
        *contents,
        contents[3],
        contents[4],
        "absent",
        "absent",
        "folder",
        "none",
        *contents,
        "one null",
        "another",
    ]
    assert [found.index(number) for number in found] == [keys.index(key) for key in keys]


@pytest.mark.parametrize("layout", ["JSON Lines", "COCO JSON", "images"])
@pytest.mark.parametrize("splits", ["automatic", "explicit"])
def test_copies_of_a_file_are_one_image_on_one_side(tmp_path, caplog, layout, splits):
    rows = []
    for k in range(30):
        PIL.Image.new("RGB", (8, 8), (k, 8 * k, 0)).save(tmp_path / f"{k:02d}.png")
        shutil.copy(tmp_path / f"{k:02d}.png", tmp_path / f"copy of {k:02d}.png")
        for name in (f"{k:02d}.png", f"copy of {k:02d}.png"):
            rows.append({"image": name, "caption": f"caption of {name}", "split": "train"})
        rows[-1]["split"] = "test"
    if splits == "automatic":
        rows = [{"image": row["image"], "caption": row["caption"]} for row in rows]
    source, options = tmp_path, {"image_folder": tmp_path}
    if layout == "COCO JSON":
        source = tmp_path / "coco.json"
        images = [{"id": k, "file_name": row["image"]} for k, row in enumerate(rows)]
        captions = [{"id": k, "image_id": k, "caption": row["caption"]} for k, row in enumerate(rows)]
        source.write_text(json.dumps({"images": images, "annotations": captions}))
    elif layout == "images":
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        columns["image"] = [str(tmp_path / name) for name in columns["image"]]
        source = tmp_path / "saved"
        Dataset.from_dict(columns).cast_column("image", Image()).save_to_disk(source)
    else:
        (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = {}
    for split in (
        ("train", "test") if splits == "explicit" and layout != "COCO JSON" else ("train", "validation", "test")
    ):
        try:
            pairs = load_pairs(source, split=split, strict=True, **options)
        except ValueError:  # without images of its own
            continue
        assert len(pairs.captions) == 2 * len(pairs.images)
        found |= {look: [*found.get(look, []), split] for look in pairs.looks}
    assert len(found) == 30 and all(len(splits) == 1 for splits in found.values())
    said = "30 images stand in several splits, such as" in caplog.text
    assert said == (splits == "explicit" and layout != "COCO JSON")


def test_karpathys_val_is_the_validation_split(tmp_path):
    for k in range(2):
        PIL.Image.new("RGB", (8, 8), (k, 0, 0)).save(tmp_path / f"{k}.png")
    rows = [{"image": f"{k}.png", "captions": ["a"], "split": split} for k, split in enumerate(["train", "val"])]
    (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("val", "validation"):
        assert load_pairs(tmp_path, split=name).images["image_id"][:] == ["1.png"]
    assert places("val", ROWS) == places("validation", ROWS)
