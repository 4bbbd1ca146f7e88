"""Records stay those of their pairs when the folder of these moves, or their ids are made by another rule."""

from __future__ import annotations

import json
import shutil

from datasets import Dataset

from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.records.dataset import load_records, save_records
from repair_hf.records.images import restore_images
from repair_hf.records.index import index_failures
from repair_hf.records.origin import with_ids_of
from repair_hf.training.fills import Edits

ROLES = ("q", "gt", "fp")


def renamed(pairs: Pairs, records: Dataset, folder: str) -> Dataset:
    """Records whose items have other names, such as the absolute paths of the images."""
    columns = {f"{role}_id": [f"{folder}/{name}" for name in records[f"{role}_id"]] for role in ROLES}
    order = records.column_names
    for name, values in columns.items():
        records = records.remove_columns(name).add_column(name, values)
    return records.select_columns(order)


def test_items_are_found_by_picture_and_text(illustrated):
    pairs, records = illustrated
    old = renamed(pairs, records, "/home/someone/photos")
    found = with_ids_of(pairs, old)
    assert found.features == records.features
    for name in ("q_id", "gt_id", "fp_id"):
        assert found[name][:] == records[name][:]
    assert with_ids_of(pairs, records) is records
    assert restore_images(old, pairs)["q_id"][:] == records["q_id"][:]


def test_training_finds_them_too(illustrated):
    pairs, records = illustrated
    old = renamed(pairs, records, "/home/someone/photos")
    assert sum(map(len, index_failures(old, pairs))) == 0
    reports = [Edits(pairs, each).report() for each in (records, old)]
    assert reports[0] == reports[1] and reports[0]["records_outside"] == 0


def test_records_of_other_pictures_stay_out(illustrated):
    """Equal captions alone are no evidence."""
    pairs, records = illustrated
    texts = renamed(pairs, records.filter(lambda row: row["direction"] == "i2t"), "/elsewhere")
    texts = texts.remove_columns("q_image").add_column(
        "q_image", [None] * len(texts), feature=records.features["q_image"]
    )
    assert with_ids_of(pairs, texts) is texts


def test_a_table_of_absolute_paths_whose_folder_moves(pairs_folder, tmp_path, illustrated):
    """No path of this machine stands in the ids, and the records stay the same."""
    rows = [json.loads(line) for line in (pairs_folder / "captions.jsonl").read_text().splitlines()]
    found = []
    for name in ("here", "there"):
        shutil.copytree(pairs_folder, tmp_path / name)
        lines = [json.dumps(row | {"image": str(tmp_path / name / row["image"])}) for row in rows]
        (tmp_path / name / "captions.jsonl").write_text("\n".join(lines))
        found.append(load_pairs(tmp_path / name, split="all"))
        if name == "here":
            save_records(tmp_path / "records", illustrated[1], illustrated[1].select([]))
            shutil.rmtree(tmp_path / name)
    assert found[0].images["image_id"][:] == found[1].images["image_id"][:] == [row["image"] for row in rows]
    assert len(load_records(tmp_path / "records", pairs=found[1])) == len(illustrated[1])
