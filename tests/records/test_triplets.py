"""`repair-hf export triplets`: each record's four triplets, in columns that sentence-transformers trains on."""

from __future__ import annotations

from collections import Counter

import pytest
from datasets import load_dataset
from PIL import Image

from repair_hf.cli.main import main
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
