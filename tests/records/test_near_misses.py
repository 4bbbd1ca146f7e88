"""`repair-hf export near-misses`: the judges of Winoground and SugarCrepe read it, with the margins of the records."""

import numpy as np
import pytest
from datasets import load_dataset

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.evaluate import evaluate
from repair_hf.records.near_misses import FEATURES


@pytest.fixture
def exported(illustrated_folder, pairs_folder, tmp_path, request, capsys):
    """The folder of the columns that a test is about."""
    words = f"export near-misses --columns {request.param} --records {illustrated_folder} --pairs {pairs_folder}"
    words = [*words.split(), "--output", str(tmp_path / "out")]
    assert main(words) == 0 == main(words)
    return tmp_path / "out"


def cosines(encoder, images, texts) -> np.ndarray:
    return encoder.embed_images(images) @ encoder.embed_texts(texts).T


@pytest.mark.parametrize("exported", ["winoground"], indirect=True)
def test_winoground_reads_two_true_pairs(exported, illustrated, clip_folder):
    pairs, records = illustrated
    rows = load_dataset(str(exported), split="test", cache_dir=str(exported / ".cache"))
    assert rows.features == FEATURES["winoground"] and len(rows) == 48
    captions = {row["caption_id"]: row["caption"] for row in pairs.captions}
    by_id, encoder = {row["id"]: row for row in rows}, DualEncoder.from_pretrained(clip_folder)
    right: dict[str, list[bool]] = {}
    for record in records:
        row = by_id[f"{record['record_id']}/truth"]
        if record["direction"] == "t2i":
            assert row["caption_0"] == record["q_text"] and row["caption_1"] == captions[f"{record['fp_id']}#0"]
        else:
            assert (row["caption_0"], row["caption_1"]) == (record["gt_text"], record["fp_text"])
        scores = cosines(encoder, [row["image_0"], row["image_1"]], [row["caption_0"], row["caption_1"]])
        is_image = scores[0, 0] > scores[1, 0] and scores[1, 1] > scores[0, 1]
        right.setdefault(f"winoground_near_misses_image_{row['kind']}", []).append(bool(is_image))
    found = evaluate(encoder, pairs, compositional=[f"winoground={exported}"], resamples=5)["model-1"]
    for name, values in right.items():
        assert found[name] == pytest.approx(np.mean(values))
    assert found["winoground_near_misses_n_cases"] == 48


@pytest.mark.parametrize("exported", ["sugarcrepe"], indirect=True)
def test_sugarcrepe_gives_the_accuracies_of_the_records(exported, illustrated, illustrated_folder, clip_folder):
    pairs, encoder = illustrated[0], DualEncoder.from_pretrained(clip_folder)
    assert load_dataset(str(exported), split="test", cache_dir=str(exported / ".cache")).features["image"].decode
    options = {"compositional": [f"sugarcrepe={exported}"], "near_misses": [str(illustrated_folder)], "resamples": 20}
    found = evaluate(encoder, pairs, **options)["model-1"]
    for name in ("i2t_truth", "i2t_edit"):  # there the negative caption is the false positive
        assert found[f"sugarcrepe_near_misses_{name}"] == found[f"near_misses_{name}"]
    assert found["sugarcrepe_near_misses_n_cases"] == 48
