"""Triplets that sentence-transformers trains on, and the index of records by query and by false positive."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from datasets import load_dataset
from made_pairs import make_pairs, make_records, random_records
from PIL import Image

from repair_hf.cli.main import main
from repair_hf.records.index import Groups, index_failures
from repair_hf.records.triplets import COMPOSED, FEATURES, export_composed, export_triplets
from repair_hf.runtime.options import UserError


def pixels(value):
    return value if isinstance(value, str) else value.convert("RGB").tobytes()


def expected(pairs, records) -> Counter:
    """Read off the records and pairs with plain dictionaries."""
    images = {row["image_id"]: row["image"] for row in pairs.images}
    captions, found = {row["caption_id"]: row["caption"] for row in pairs.captions}, Counter()
    for row in records:
        kinds = ("text", "image") if row["direction"] == "t2i" else ("image", "text")
        q, gt, fp, edit = (row[f"{role}_{kinds[role != 'q']}"] for role in ("q", "gt", "fp", "edit"))
        other = captions[row["fp_id"] + "#0"] if row["direction"] == "t2i" else images[row["fp_id"].split("#")[0]]
        for match in (gt, edit):
            found[tuple(map(pixels, (q, match, fp)))] += 1
            found[tuple(map(pixels, (match, q, other)))] += 1
    return found


def test_a_record_gives_four_triplets(illustrated, illustrated_folder, pairs_folder, tmp_path, capsys):
    words = ["export", "triplets", "--records", str(illustrated_folder), "--pairs", str(pairs_folder)]
    words += ["--output", str(tmp_path / "out")]
    assert main(words) == 0 == main(words)
    assert "48 text_to_image, 48 image_to_text" in capsys.readouterr().out
    found: Counter = Counter()
    for config, features in FEATURES.items():
        data = load_dataset(str(tmp_path / "out"), config, split="train", cache_dir=str(tmp_path / "cache"))
        assert data.features == features and data.column_names == ["anchor", "positive", "negative"]
        found.update(tuple(map(pixels, row.values())) for row in data)
    assert found == expected(*illustrated)


def test_records_of_other_pairs(illustrated, tmp_path):
    pairs, records = illustrated
    strange = Image.new("RGB", (48, 40), (1, 2, 3))  # a picture of these pairs would be found whatever its id

    def of_others(row: dict) -> dict:
        return {"fp_id": "x"} | ({"fp_image": strange} if row["direction"] == "t2i" else {})

    with pytest.raises(ValueError, match="No record names a false positive of these pairs. Give the pairs"):
        export_triplets(records.map(of_others), pairs, tmp_path / "none")
    known = next(row for row in records if row["direction"] == "t2i")["fp_id"]
    some = records.map(lambda row: {} if row["fp_id"] == known else of_others(row))
    n = sum(row["fp_id"] == known for row in records)
    assert export_triplets(some, pairs, tmp_path / "some") == {"text_to_image": 24, "image_to_text": 24 + 2 * n}


def test_edits_of_images_are_triplets_of_composed_retrieval(illustrated, illustrated_folder, pairs_folder, tmp_path):
    words = ["export", "composed", "--records", str(illustrated_folder), "--pairs", str(pairs_folder)]
    words += ["--output", str(tmp_path / "out")]
    assert main(words) == 0 == main(words)
    data = load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert data.features == COMPOSED
    records = [row for row in illustrated[1] if row["direction"] == "t2i"]
    assert len(data) == len(records) > 0
    for row, record in zip(data, records, strict=True):
        assert pixels(row["reference"]) == pixels(record["fp_image"])
        assert pixels(row["target"]) == pixels(record["edit_image"])
        assert (row["caption"], row["target_caption"]) == (record["edit_instruction"], record["q_text"])
    captions_alone = illustrated[1].filter(lambda row: row["direction"] == "i2t")
    with pytest.raises(UserError, match="No record edits an image"):
        export_composed(captions_alone, illustrated[0], tmp_path / "none")


# Records by query and by false positive, against loops over their rows


def test_a_place_of_each_group_is_drawn_uniformly():
    keys = np.array([4, 0, 4, 1, 4])
    groups = Groups(keys, 6)
    wanted = np.repeat([4, 0, 1, 3, -1], 3000)
    drawn = groups.draw(wanted, np.random.default_rng(0).random(15_000)).reshape(5, 3000)
    assert set(drawn[0]) == {0, 2, 4} and np.bincount(drawn[0])[[0, 2, 4]].min() > 900
    assert (drawn[1:] == [[1], [3], [-1], [-1]]).all()
    assert groups.draw(np.array([4, 4]), np.array([0.0, 1 - 2**-53])).tolist() == [0, 4]
    assert groups.count.tolist() == [1, 1, 0, 0, 3, 0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_records_are_found_whatever_their_order_those_with_an_edit_first(seed):
    records, pairs = random_records(40, seed), make_pairs()
    shuffled = records.select(np.random.default_rng(seed).permutation(40))
    for direction, *sides in zip(
        ("i2t", "t2i"), index_failures(records, pairs), index_failures(shuffled, pairs), strict=True
    ):
        rows = [row for row in records.to_list() if row["direction"] == direction]
        edit = "edit_text" if direction == "i2t" else "edit_image"
        rows.sort(key=lambda row: (row[edit] is None, -row["fp_score"], row["record_id"]))
        first = 12 if direction == "i2t" else 6
        has_edit = [row[edit] is not None for row in rows]
        for side, table in zip(sides, (records, shuffled), strict=True):
            assert len(side) == len(rows) and side.n_edits == sum(has_edit)
            assert table[side.edited_rows.tolist()]["record_id"] == [row["record_id"] for row in rows[: sum(has_edit)]]
            for values, name in ((side.queries, "q_id"), (side.negatives, "fp_id")):
                assert values.tolist() == [*(int(row[name][1:]) for row in rows), -1]
            assert side.edits.tolist() == [*(first + k if has else -1 for k, has in enumerate(has_edit)), -1]


def test_records_of_other_items_stay_out_and_a_missing_column_is_named():
    records = make_records(("c0", "i3"), ("c99", "i0"), ("i0", "c99"), ("i1", "c0"))
    assert [len(side) for side in index_failures(records, make_pairs())] == [1, 1]
    with pytest.raises(UserError, match="fp_score"):
        index_failures(records.remove_columns("fp_score"), make_pairs())
