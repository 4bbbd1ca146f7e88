"""`repair-hf export near-misses`: the records in the columns of Winoground and SugarCrepe."""

import pytest
from datasets import load_dataset

from repair_hf.cli.main import main
from repair_hf.records.near_misses import FEATURES


@pytest.fixture
def exported(illustrated_folder, pairs_folder, tmp_path, request, capsys):
    """The folder of the columns that a test is about."""
    words = f"export near-misses --columns {request.param} --records {illustrated_folder} --pairs {pairs_folder}"
    words = [*words.split(), "--output", str(tmp_path / "out")]
    assert main(words) == 0 == main(words)
    return tmp_path / "out"


@pytest.mark.parametrize("exported", ["winoground"], indirect=True)
def test_winoground_has_two_true_pairs(exported, illustrated):
    pairs, records = illustrated
    rows = load_dataset(str(exported), split="test", cache_dir=str(exported / ".cache"))
    assert rows.features == FEATURES["winoground"] and len(rows) == 48
    assert "were made from the split `all` of their pairs" in (exported / "README.md").read_text()
    captions = {row["caption_id"]: row["caption"] for row in pairs.captions}
    by_id = {row["id"]: row for row in rows}
    for record in records:
        row = by_id[f"{record['record_id']}/truth"]
        if record["direction"] == "t2i":
            assert row["caption_0"] == record["q_text"] and row["caption_1"] == captions[f"{record['fp_id']}#0"]
        else:
            assert (row["caption_0"], row["caption_1"]) == (record["gt_text"], record["fp_text"])


@pytest.mark.parametrize("exported", ["sugarcrepe"], indirect=True)
def test_sugarcrepe_has_the_false_positive_as_the_negative_caption(exported, illustrated):
    rows = load_dataset(str(exported), split="test", cache_dir=str(exported / ".cache"))
    assert rows.features["image"].decode and len(rows) == 48
    by_id = {row["id"]: row for row in rows}
    for record in illustrated[1].filter(lambda record: record["direction"] == "i2t"):
        for kind, match in (("truth", record["gt_text"]), ("edit", record["edit_text"])):
            row = by_id[f"{record['record_id']}/{kind}"]
            assert (row["caption"], row["negative_caption"]) == (match, record["fp_text"])
