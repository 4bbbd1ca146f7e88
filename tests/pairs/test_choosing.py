"""The split and the draw of an image never change: a new release must not move a test image into training.

Rows of one group stay in one split, whatever the layout.
"""

import json
import shutil
from collections import Counter

import numpy as np
import pandas as pd
import PIL.Image
import pytest
from datasets import Dataset, DatasetDict

from repair_hf.pairs.dataset import load_pairs
from repair_hf.pairs.images import equal_cells
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.rows import draw_images, items_of_split
from repair_hf.pairs.sources import IMAGES
from repair_hf.runtime.options import PairsOptions, UserError
from tests.pairs.made_sources import write

ITEMS = pd.DataFrame({"item": range(30), "image_id": [f"{place:012d}.jpg" for place in range(30)]})


def places(split: str, items: pd.DataFrame = ITEMS) -> list[int]:
    return items_of_split(items, (split,), Problems(), PairsOptions("photographs"))["item"].tolist()


def test_images_are_split_by_the_same_hash_as_ever():
    assert places("validation") == [4, 5, 18, 27] and places("test") == [1, 9]
    assert places("train") == sorted(set(range(30)) - {1, 4, 5, 9, 18, 27})


def test_an_image_keeps_its_split_when_others_come_or_go():
    assert places("test", ITEMS[5:]) == [9] and places("validation", ITEMS[::-1]) == [27, 18, 5, 4]


def test_images_of_a_group_stay_together():
    grouped = ITEMS.assign(group=[ITEMS["image_id"][place % 3 + 3] for place in range(30)])  # groups 3, 4 and 5
    assert places("train", grouped) == list(range(0, 30, 3))
    assert places("validation", grouped) == [place for place in range(30) if place % 3]


def test_the_same_images_are_drawn_as_ever_and_a_larger_draw_contains_every_smaller_one():
    drawn = draw_images(ITEMS, 10)["item"].tolist()
    assert drawn == [0, 4, 6, 7, 8, 11, 14, 19, 22, 24]
    assert set(draw_images(ITEMS, 4)["item"]) < set(drawn) and len(draw_images(ITEMS, 99)) == 30


def test_files_and_bytes_are_equal_if_all_of_their_bytes_are(tmp_path):
    rng = np.random.default_rng(0)
    plain = rng.bytes(20_000)
    contents = [plain, plain, b"", plain[:-1] + b"x", b"x" + plain[1:], plain[:-1], plain, b"", b"one", b"two"]
    for place, content in enumerate(contents):
        (tmp_path / f"{place}.png").write_bytes(content)
    paths = [f"{tmp_path}/{place}.png" for place in range(len(contents))]
    paths += [paths[3], f"{tmp_path}/./4.png", f"{tmp_path}/absent.png", f"{tmp_path}//absent.png", str(tmp_path), ""]
    cells = [{"bytes": None, "path": path} for path in paths]
    cells += [{"bytes": content, "path": "x.png"} for content in contents] + [None, None]
    found = equal_cells(Dataset.from_dict({"image": cells}, features=IMAGES))
    keys = [*contents, contents[3], contents[4], "absent", "absent", "folder", "none", *contents, "null", "another"]
    assert [found.index(number) for number in found] == [keys.index(key) for key in keys]


@pytest.mark.parametrize("splits", ["automatic", "explicit"])
def test_copies_of_a_file_are_one_image_on_one_side(tmp_path, caplog, splits):
    rows = []
    for k in range(30):
        PIL.Image.new("RGB", (8, 8), (k, 8 * k, 0)).save(tmp_path / f"{k:02d}.png")
        shutil.copy(tmp_path / f"{k:02d}.png", tmp_path / f"copy of {k:02d}.png")
        for name, split in ((f"{k:02d}.png", "train"), (f"copy of {k:02d}.png", "test")):
            row = {"image": name, "captions": [f"caption of {name}"]}
            rows.append(row | {"split": split} if splits == "explicit" else row)
    write(tmp_path, rows)
    found = Counter()
    for split in ("train",) if splits == "explicit" else ("train", "validation", "test"):
        pairs = load_pairs(tmp_path, split=split, strict=True)
        assert len(pairs.captions) == 2 * len(pairs.images)
        found.update(pairs.looks)
    assert len(found) == 30 and set(found.values()) == {1}
    if splits == "explicit":
        assert "30 images stand in several splits, such as" in caplog.text
        with pytest.raises(UserError, match="no image in split `test`"):
            load_pairs(tmp_path, split="test")


def test_karpathys_val_is_the_validation_split(tmp_path):
    for k in range(2):
        PIL.Image.new("RGB", (8, 8), (k, 0, 0)).save(tmp_path / f"{k}.png")
    rows = [{"image": f"{k}.png", "captions": ["a"], "split": split} for k, split in enumerate(["train", "val"])]
    (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("val", "validation"):
        assert load_pairs(tmp_path, split=name).images["image_id"][:] == ["1.png"]
    assert places("val") == places("validation")


COLORS = [(k, 255 - k, 7 * k % 256) for k in range(60)]


@pytest.fixture
def products(tmp_path):
    """Pictures of twenty products; the last has no product, and the 53rd is in a second row, of q18."""
    rows = []
    for k, color in enumerate(COLORS):
        PIL.Image.new("RGB", (4, 4), color).save(tmp_path / f"{k}.png")
        rows.append({"image": f"{k}.png", "caption": f"caption {k}", "product": "" if k == 59 else f"q{k // 3}"})
    rows.append(rows[53] | {"caption": "another", "product": "q18"})
    return tmp_path, rows


def test_no_product_falls_into_two_splits(products):
    folder, rows = products
    pd.DataFrame(rows).to_csv(folder / "rows.csv", index=False)
    found = {}
    for split in ("train", "validation", "test"):
        pairs = load_pairs(folder / "rows.csv", split=split, group="product", strict=True)
        numbers = [int(name.removesuffix(".png")) for name in pairs.images["image_id"]]
        found |= dict.fromkeys(numbers, split)
        expected = [{18: 17}.get(k // 3, k // 3) if k != 59 else 99 for k in numbers]
        groups = pairs.groups.tolist()
        assert len(set(groups)) == len(set(expected)) == len(set(zip(groups, expected, strict=True)))
    assert len(found) == 60 and len(set(found.values())) == 3
    assert all(found[3 * k] == found[3 * k + 1] == found[3 * k + 2] for k in range(19))
    assert found[51] == found[54]
    whole, plain = (load_pairs(folder / "rows.csv", split="all", group=group) for group in ("product", None))
    assert whole.fingerprint != plain.fingerprint


def test_a_product_in_two_splits_of_the_source_is_an_error(products):
    folder, rows = products
    splits = {"train": rows[:10], "test": rows[10:]}
    parts = {
        name: Dataset.from_dict({key: [row[key] for row in some] for key in rows[0]}) for name, some in splits.items()
    }
    DatasetDict(parts).save_to_disk(folder / "saved")
    load_pairs(folder / "saved", image_folder=folder)
    with pytest.raises(UserError, match=r"has 1 groups in several splits, such as `q3` in \['test', 'train'\]"):
        load_pairs(folder / "saved", image_folder=folder, group="product")
