"""Rows of one group stay in one split, whatever the layout."""

from __future__ import annotations

import csv

import PIL.Image
import pytest
from datasets import Dataset, DatasetDict

from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from tests.pairs.made_sources import write

COLOURS = [(k, 255 - k, 7 * k % 256) for k in range(60)]


@pytest.fixture
def products(tmp_path):
    """Pictures of twenty products; the last has no product, and the 53rd is in a second row, of q18."""
    rows = []
    for k, colour in enumerate(COLOURS):
        PIL.Image.new("RGB", (4, 4), colour).save(tmp_path / f"{k}.png")
        rows.append({"image": f"{k}.png", "caption": f"caption {k}", "product": "" if k == 59 else f"q{k // 3}"})
    rows.append(rows[53] | {"caption": "another", "product": "q18"})
    return tmp_path, rows


@pytest.mark.parametrize("layout", ["CSV", "captions.jsonl", "saved"])
def test_no_product_falls_into_two_splits(products, layout):
    folder, rows = products
    source = folder if layout == "captions.jsonl" else folder / "rows.csv"
    if layout == "captions.jsonl":
        write(folder, [{"captions": [row.pop("caption")]} | row for row in rows])
    elif layout == "CSV":
        with source.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        source = folder / "saved"
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        Dataset.from_dict(columns | {"filename": columns["image"]}).save_to_disk(source)
    options = {"image_folder": folder} if layout == "saved" else {}
    found = {}
    for split in ("train", "validation", "test"):
        pairs = load_pairs(source, split=split, group="product", strict=True, **options)
        found |= {int(name.removesuffix(".png")): split for name in pairs.images["image_id"]}
        products_of = [int(name.removesuffix(".png")) // 3 for name in pairs.images["image_id"]]
        joined = [17 if product == 18 else 99 if name == "59.png" else product for product, name in zip(
            products_of, pairs.images["image_id"], strict=True
        )]  # fmt: skip
        numbers = pairs.groups.tolist()
        assert len(set(numbers)) == len(set(joined)) == len(set(zip(numbers, joined, strict=True)))
    assert len(found) == 60 and len(set(found.values())) == 3
    assert all(found[3 * k] == found[3 * k + 1] == found[3 * k + 2] for k in range(19))
    assert found[51] == found[54]
    whole = load_pairs(source, split="all", group="product", **options)
    assert whole.fingerprint != load_pairs(source, split="all", **options).fingerprint


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


def test_a_group_that_no_row_has(products, tmp_path):
    folder, rows = products
    write(folder, [{"image": row["image"], "captions": ["a"]} for row in rows])
    with pytest.raises(UserError, match="no column `shop`.* Set `group`"):
        load_pairs(folder, group="shop")
