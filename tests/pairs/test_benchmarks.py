"""Karpathy's files at their true sizes; data that are not the named benchmark raise an error."""

from __future__ import annotations

import json
import logging
import random
from contextlib import nullcontext
from pathlib import Path

import PIL.Image
import pytest
from datasets import Dataset, DatasetDict, Image

from repair_hf.evaluation.provenance import provenance
from repair_hf.pairs import benchmarks
from repair_hf.pairs.benchmarks import BenchmarkSplit
from repair_hf.pairs.dataset import load_pairs, load_wanted
from repair_hf.runtime.options import PairsOptions, UserError
from tests.pairs.made_sources import kinds


def flickr30k(counts: dict[str, int], captions: int = 5) -> list[dict]:
    """Rows of dataset_flickr30k.json."""
    rows = []
    for split, count in counts.items():
        for _ in range(count):
            sentences = [{"raw": f"caption {k} of {len(rows)}", "sentid": 5 * len(rows) + k} for k in range(captions)]
            rows.append({"filename": f"{1000 + len(rows)}.jpg", "split": split, "sentences": sentences})
    return rows


def coco(counts: dict[str, int], more_captions: int = 10) -> list[dict]:
    """Rows of dataset_coco.json, numbers not in order; the first ten images of a split have a caption more."""
    numbers = random.Random(1).sample(range(1, 600_000), sum(counts.values()))
    five, six = ([{"raw": f"a caption {k}"} for k in range(count)] for count in (5, 6))
    rows = []
    for split, count in counts.items():
        folder = "train2014" if split == "train" else "val2014"
        for place in range(count):
            number = numbers[len(rows)]
            sentences = six if place < more_captions else five
            row = {"filepath": folder, "filename": f"COCO_{folder}_{number:012}.jpg", "cocoid": number}
            rows.append(row | {"split": split, "sentences": sentences})
    return rows


def write(folder: Path, rows: list[dict], *, drawn: str | None = None) -> Path:
    """The JSON, and a picture for each row of split `drawn`."""
    picture = folder / "picture.png"
    PIL.Image.new("RGB", (2, 2), "red").save(picture)
    content = picture.read_bytes()
    for path in {row.get("filepath", "") for row in rows}:
        (folder / path).mkdir(exist_ok=True)
    for row in rows:
        if row["split"] == drawn:
            file = folder / row.get("filepath", "") / row["filename"]
            file.write_bytes(content + row["filename"].encode())  # files of equal bytes would be one image
    file = folder / "dataset.json"
    file.write_text(json.dumps({"images": rows, "dataset": "made up"}))
    return file


def load(file: Path, split: str, benchmark: str | None = None, **options):
    return load_pairs(file, image_folder=file.parent, split=split, benchmark=benchmark, **options)


def test_karpathys_coco_in_its_folders_or_in_one_and_restval_if_it_is_asked_for(tmp_path):
    rows = coco({"train": 3, "restval": 2, "val": 1, "test": 1}, more_captions=1)
    for split in ("train", "restval", "test"):
        file = write(tmp_path, rows, drawn=split)
    pairs = load(file, "train")
    assert pairs.images["image_id"][:] == [row["filename"] for row in rows[:3]] and pairs.problems == ()
    assert [len(pairs.captions_of(k)) for k in range(3)] == [6, 5, 5]
    assert list(pairs.captions[7].values()) == [f"{rows[1]['filename']}#1", "a caption 1", 1]
    for split, more, count in (("restval", False, 2), ("train", True, 5), ("test", True, 1)):
        assert len(load(file, split, with_restval=more).images) == count
    file.write_text(json.dumps({"images": [row for row in rows if row["split"] != "restval"]}))
    with pytest.raises(UserError, match=r"no image in split `restval`; it has \['test', 'train', 'val'\]"):
        load(file, "train", with_restval=True)
    for path in (tmp_path / "train2014").iterdir():
        path.rename(tmp_path / path.name)
    (tmp_path / "train2014").rmdir()
    assert len(load(file, "train").images) == 3


def test_bad_rows_of_karpathys_file(tmp_path):
    rows = flickr30k({"train": 6})
    rows[1] = rows[0]
    rows[2]["sentences"] = [{"raw": "left"}, {"tokens": ["no", "raw"]}, 3]
    del rows[3]["split"]
    rows[4]["filename"] = "../x.jpg"
    rows[5]["filepath"] = "/etc"
    file = tmp_path / "dataset.json"
    file.write_text(json.dumps({"images": rows}))
    for row in (rows[0], rows[2]):
        PIL.Image.new("RGB", (2, 2)).save(tmp_path / row["filename"])
    pairs = load(file, "train")
    assert kinds(pairs) == {"malformed_row": 1, "missing_image": 2, "empty_caption": 2}
    assert pairs.captions["caption"][-1] == "left"


@pytest.mark.slow
def test_flickr30k_at_its_size(tmp_path, caplog):
    file = write(tmp_path, flickr30k({"train": 6, "val": 1_014, "test": 1_000}), drawn="test")
    with caplog.at_level(logging.INFO):
        pairs = load(file, "test", "flickr30k")
    assert (len(pairs.images), len(pairs.captions)) == (1_000, 5_000)
    assert "flickr30k test: 1000 images, 5000 captions." in caplog.text
    with pytest.raises(UserError, match=r"lacks 1,014 of the 1,014 images.* val.*'1006.jpg', .*, \.\.\."):
        load(file, "val", "flickr30k")
    with pytest.raises(UserError, match="lists 6 images with 30 captions as train, .* 29,000 images there"):
        load(file, "train", "flickr30k")


def test_a_benchmark_with_images_or_captions_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarks, "SIZES", {"flickr30k": {"test": benchmarks.Size(20, (100,))}})
    file = write(tmp_path, flickr30k({"test": 20}), drawn="test")
    rows = json.loads(file.read_text())["images"]
    rows[-7]["sentences"][2]["raw"] = " "
    (empty := file.with_name("empty.json")).write_text(json.dumps({"images": rows}))
    with pytest.raises(UserError, match="lacks 0 of the 20 images of `flickr30k` test.* and 1 captions of the"):
        load(empty, "test", "flickr30k")
    assert len(load(empty, "test").captions) == 99
    (tmp_path / "1005.jpg").unlink()
    with pytest.raises(UserError, match=r"lacks 1 of the 20 images of `flickr30k` test \('1005.jpg'\)"):
        load(file, "test", "flickr30k")
    assert len(load(file, "test").images) == 19


@pytest.mark.parametrize(
    ("benchmark", "split", "images", "captions", "message"),
    [
        ("coco", "train", 82_783, 414_113, None),
        ("coco", "train+restval", 113_287, 566_747, None),
        ("coco30k", "train", 82_783, 414_113, None),
        ("coco", "test", 5_000, 25_010, None),
        ("coco30k", "val", 5_000, 25_000, None),  # without the ten captions beyond five
        ("flickr30k", "test", 1_000, 1_000, "lists 1,000 images with 1,000 captions as test, .* 5,000 captions"),
        ("flickr30k", "test", 999, 4_995, "lists 999 images with 4,995 captions as test, .* 1,000 images there"),
        ("coco30k", "train", 113_287, 566_747, "has 82,783 images there"),
        ("coco", "train+restval", 82_783, 414_113, "113,287 images"),
        ("coco", "test", 5_000, 25_014, "25,010 or 25,000 captions"),
    ],
)
def test_sizes(benchmark, split, images, captions, message):
    with nullcontext() if message is None else pytest.raises(UserError, match=message):
        BenchmarkSplit(benchmark, split, "x").check_listed(images, captions)


def test_coco30k_is_drawn_from_train_without_restval():
    ids = sorted(random.Random(1).sample(range(1, 600_000), 82_783))
    expected = set(random.Random(42).sample(ids, 29_000))
    drawn = benchmarks.draw_coco30k([f"COCO_train2014_{number:012}.jpg" for number in ids[::-1]])
    assert {int(name[-16:-4]) for name in drawn} == expected
    assert benchmarks.draw_coco30k([str(number) for number in ids]) == set(map(str, expected))
    with pytest.raises(UserError, match="'train-0000007' is none"):
        benchmarks.draw_coco30k(["train-0000007"])


def test_coco30k_loads_what_is_drawn(tmp_path, monkeypatch):
    sizes = {"coco": {"train": benchmarks.Size(6)}, "coco30k": {"train": benchmarks.Size(4)}}
    monkeypatch.setattr(benchmarks, "SIZES", sizes)
    rows = coco({"train": 6, "restval": 3})
    pairs = load(write(tmp_path, rows, drawn="train"), "train", "coco30k", max_captions=1)
    assert pairs.whole == (4, 24) and len(pairs.captions) == 4
    ids = sorted(row["cocoid"] for row in rows[:6])
    assert {int(name[-16:-4]) for name in pairs.images["image_id"]} == set(random.Random(42).sample(ids, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "all", "benchmark": "flickr30k"}, r"no split `all`; it has \['train', 'val', 'test'\]"),
        ({"benchmark": "coco30k", "with_restval": True}, r"no split `train\+restval`.*without restval"),
        ({"benchmark": "flickr30k"}, "has no splits, but `flickr30k` needs one"),
    ],
)
def test_refuses_what_a_benchmark_does_not_have(pairs_folder, options, message):
    with pytest.raises(UserError, match=message):
        load_pairs(pairs_folder, **options)


def test_a_draw_of_a_split_is_the_same_each_time_and_holds_every_smaller_one(tmp_path, monkeypatch):
    rows = coco({"train": 12, "test": 1}, more_captions=2)
    file = write(tmp_path, rows, drawn="train")
    assert load(file, "train").whole is None
    drawn = {most: load(file, "train", max_images=most, max_captions=2) for most in (3, 7, 50)}
    ids = {most: pairs.images["image_id"][:] for most, pairs in drawn.items()}
    assert ids[50] == [row["filename"] for row in rows[:12]]
    assert ids[3] == [name for name in ids[50] if name in ids[3]] and set(ids[3]) < set(ids[7]) < set(ids[50])
    assert ids[3] == load(file, "train", max_images=3).images["image_id"][:] != ids[7][:3]
    for most, pairs in drawn.items():
        assert pairs.whole == (12, 62) and len(pairs.images) == min(most, 12)
        assert pairs.captions["caption"][:] == ["a caption 0", "a caption 1"] * len(pairs.images)
    monkeypatch.setattr(benchmarks, "SIZES", {"flickr30k": {"val": benchmarks.Size(20, (100,))}})
    file = write(tmp_path, flickr30k({"val": 20}), drawn="val")
    options = PairsOptions(str(file), str(tmp_path), split="val", benchmark="flickr30k", max_images=9)
    assert len(load_wanted(options).images) == 9
    assert provenance(options, load_wanted(options), "x", "y")["benchmark"] is None


def test_a_dataset_with_a_column_of_splits_is_as_karpathys_file(tmp_path, monkeypatch):
    """The columns of the common Flickr30K on the Hub: a single split `test`, and a column `split`.

    Each photograph stands in it twice, under two names, as some do in COCO.
    """
    sizes = {split: benchmarks.Size(24, (120,)) for split in ("val", "test")}
    monkeypatch.setattr(benchmarks, "SIZES", {"flickr30k": sizes})
    rows = flickr30k({"train": 20, "val": 24, "test": 3})
    file = write(tmp_path, rows, drawn="val")
    picture = (tmp_path / "picture.png").read_bytes()
    columns = {
        "image": [{"bytes": picture + bytes(place // 2), "path": None} for place in range(len(rows))],
        "caption": [[sentence["raw"] for sentence in row["sentences"]] for row in rows],
        "split": [row["split"] for row in rows],
        "img_id": [str(place) for place in range(len(rows))],
        "filename": [row["filename"] for row in rows],
    }
    data = Dataset.from_dict(columns).cast_column("image", Image())
    DatasetDict({"test": data}).save_to_disk(tmp_path / "hub")
    pairs, of_file = load_pairs(tmp_path / "hub", split="val", benchmark="flickr30k"), load(file, "val", "flickr30k")
    assert pairs.images["image_id"][:] == of_file.images["image_id"][:]
    assert pairs.captions[:] == of_file.captions[:]
    DatasetDict({"test": data.remove_columns("split")}).save_to_disk(tmp_path / "all_in_one")
    for name, count in (("hub", "3 images with 15"), ("all_in_one", "47 images with 235")):
        with pytest.raises(UserError, match=f"lists {count} captions as test"):
            load_pairs(tmp_path / name, split="test", benchmark="flickr30k")
    parts = {"train": data.select(range(4)), "restval": data.select(range(4, 10))}
    DatasetDict({name: part.remove_columns("split") for name, part in parts.items()}).save_to_disk(tmp_path / "parts")
    assert [len(load_pairs(tmp_path / "parts", with_restval=more).images) for more in (False, True)] == [2, 5]
