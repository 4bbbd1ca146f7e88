"""Winoground from its folder, as a dataset, and from the Hub."""

import json

import numpy as np
import pytest
from benchmark_files import WINO, color_of, with_images
from datasets import Dataset, DatasetDict

from repair_hf.evaluation import winoground
from repair_hf.evaluation.pictures import load_test_rows
from repair_hf.runtime.options import UserError


@pytest.fixture
def dataset(photographs):
    return with_images(photographs, WINO, ["image_0", "image_1"])


def check(cases):
    assert (cases.benchmark, len(cases), len(cases.pictures)) == ("winoground_subset", 2, 4)
    shown = [[color_of(picture) for picture in cases.pictures[row]] for row in cases.picture]
    assert shown == [["red", "blue"], ["green", "yellow"]]
    assert [[cases.captions[k] for k in row] for row in cases.caption] == [["r", "b"], ["g", "y"]]


def test_asks_each_picture_and_each_caption():
    scores = np.array([[[3, 2], [1, 4]], [[3, 2], [1, 1]], [[1, 1], [0, 2]]], np.float32)  # pictures by captions
    right = {name: (margin > 0).tolist() for name, margin in winoground.judge(scores, None).items()}
    assert right == {"text": [True, False, False], "image": [True, False, True], "group": [True, False, False]}


def test_from_its_folder(photographs, tmp_path):
    rows = [{"id": 7 + k} | {name: values[k] for name, values in WINO.items()} for k in range(2)]
    rows.append({"id": 9, "image_0": "red", "image_1": "gone", "caption_0": "a", "caption_1": "b"})
    (tmp_path / "examples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    cases = winoground.load_winoground(str(tmp_path), [photographs], subset=True)
    check(cases)
    assert cases.case_ids == cases.picture_ids == ["7", "8"]
    message = "`winoground` has 400 cases, and 2 can be evaluated here; 1 photographs are missing .'gone.png'"
    with pytest.raises(UserError, match=message):
        winoground.load_winoground(str(tmp_path), [photographs])


@pytest.mark.parametrize("form", ["parquet", "saved", "saved with splits"])
def test_as_a_dataset(dataset, tmp_path, form, monkeypatch):
    folder = str(tmp_path / "dataset")
    if form == "saved with splits":
        dataset = DatasetDict({"train": dataset.select([0]), "test": dataset})
    dataset.save_to_disk(folder)
    if form == "parquet":  # as the Hub has it: the images' bytes in the file
        whole = Dataset.load_from_disk(folder)
        (tmp_path / "parquet" / "data").mkdir(parents=True)
        whole.to_parquet(tmp_path / "parquet" / "data" / "test-00000-of-00001.parquet")
        monkeypatch.chdir(tmp_path)
        folder = "parquet"  # which is also the name of a reader of `datasets`
    check(winoground.load_winoground(folder, [], subset=True))


def test_a_dataset_must_have_a_test_split_and_its_columns(dataset, tmp_path):
    DatasetDict({"a": dataset, "b": dataset}).save_to_disk(str(tmp_path / "two"))
    with pytest.raises(UserError, match=r"has the splits \['a', 'b'\], and none named test"):
        load_test_rows(str(tmp_path / "two"), [], [])
    dataset.remove_columns("caption_1").save_to_disk(str(tmp_path / "less"))
    with pytest.raises(UserError, match="has the columns .*; it lacks caption_1"):
        winoground.load_winoground(str(tmp_path / "less"), [])
    with pytest.raises(UserError, match="`facebook/winoground` cannot be loaded as a dataset.*hf auth login"):
        winoground.load_winoground("facebook/winoground", [])
