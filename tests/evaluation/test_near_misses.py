"""Near misses of records, against a loop over single cosines."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.evaluate import evaluate
from repair_hf.evaluation.near_misses import load_changed, load_near_misses
from repair_hf.records.columns import MODALITIES
from repair_hf.records.dataset import load_records
from repair_hf.runtime.options import UserError


def slow_accuracies(records, encoder) -> dict[str, float]:
    """Embed each record's four items by themselves, and compare two cosines at a time."""
    right: dict[str, list[bool]] = {}
    for record in records:
        embed = {"image": encoder.embed_images, "text": encoder.embed_texts}
        kinds = MODALITIES[record["direction"]]
        q, gt, fp, edit = (embed[kind]([record[f"{role}_{kind}"]])[0] for role, kind in kinds.items())
        for measure, other in (("truth", gt), ("edit", edit)):
            name = f"near_misses_{record['direction']}_{measure}"
            right.setdefault(name, []).append(float(q @ other) > float(q @ fp))
    return {name: float(np.mean(values)) for name, values in right.items()}


def test_accuracies_are_those_of_single_cosines(illustrated, illustrated_folder, encoder):
    pairs, records = illustrated
    found = evaluate(encoder, pairs, near_misses=[str(illustrated_folder)], resamples=50)["model-1"]
    expected = slow_accuracies(records, encoder)
    assert {name: found[name] for name in expected} == pytest.approx(expected) and len(expected) == 4
    for name in expected:
        low, high = found["intervals"][name]
        assert low <= found[name] <= high
    assert found["near_misses_i2t_n_cases"] == found["near_misses_t2i_n_cases"] == 12
    assert found["near_misses_i2t_n_pictures"] == 6


def test_each_picture_is_embedded_once(illustrated):
    by_name = {cases.benchmark: cases for cases in load_near_misses(illustrated[1])}
    assert len(by_name["near_misses_i2t"].pictures) == 6
    t2i = by_name["near_misses_t2i"]
    ids = {record[f"{role}_id"] for record in illustrated[1] if record["direction"] == "t2i" for role in ("gt", "fp")}
    assert len(t2i.pictures) == len(ids) + 12 and t2i.picture.shape == (12, 3)


def test_pairs_restore_images_that_the_records_lack(illustrated, records_folder):
    """The folder holds the same records without their source images."""
    pairs, records = illustrated
    whole, restored = load_near_misses(records), load_near_misses(records_folder, pairs)
    assert [cases.fingerprint for cases in whole] == [cases.fingerprint for cases in restored]
    with pytest.raises(UserError, match="without their source images"):
        load_near_misses(records_folder)


def test_records_of_one_direction_have_one_set(illustrated):
    records = load_records(illustrated[1]).filter(lambda record: record["direction"] == "t2i")
    assert [cases.benchmark for cases in load_near_misses(records)] == ["near_misses_t2i"]


def test_changed_cases_are_counted_and_shown(
    pairs_folder, illustrated_folder, clip_folder, siglip_folder, tmp_path, capsys
):
    out = tmp_path / "out"
    words = (
        f"--pairs {pairs_folder} --split all --near-misses {illustrated_folder} --resamples 5 --output {out}".split()
    )
    assert main(["evaluate", str(clip_folder), str(siglip_folder), *words, "--output", str(out)]) == 0
    assert "no model before it" not in capsys.readouterr().out  # neither was trained here
    compared = json.loads((out / "differences.json").read_text())
    assert (compared["previous"], compared["repair"]) == ([], [])
    (name,) = compared["differences"]
    tables = [pq.read_table(out / model / "cases.parquet").to_pylist() for model in (compared["reference"], name)]
    for change, was in (("repaired", False), ("broken", True)):
        changed = [one for one, now in zip(*tables, strict=True) if one["correct"] == was != now["correct"]]
        counts = {f"{one['benchmark']}_{one['measure']}": 0 for one in tables[0]}
        for one in changed:
            counts[f"{one['benchmark']}_{one['measure']}"] += 1
        assert {key: found[change] for key, found in compared["cases"][name].items()} == counts
        ids = {one["case_id"] for one in changed}
        assert ids and set(load_changed(out, change)["record_id"]) == ids
        assert main(["show", str(out), "--change", change, "--n", "50", "--output", str(tmp_path / "x.html")]) == 0
        assert f"show   {len(ids)} of {len(ids)} {change} near misses" in capsys.readouterr().out
    with pytest.raises(UserError, match="compares no models on near misses"):
        load_changed(illustrated_folder, "broken")


def test_pictures_are_decoded_once_for_several_models(illustrated, clip_folder, siglip_folder, monkeypatch):
    pictures = load_near_misses(illustrated[1])[0].pictures
    clip, siglip = (DualEncoder.from_pretrained(folder).preprocessor for folder in (clip_folder, siglip_folder))
    expected = [one.images(pictures[np.arange(6)]) for one in (clip, siglip)]
    assert pictures.resized(clip).equal(expected[0]) and pictures.resized(siglip).equal(expected[1])
    monkeypatch.setattr(pictures, "_open", None)
    assert pictures.resized(siglip).equal(expected[1])
    monkeypatch.setattr("repair_hf.evaluation.pictures.KEPT", 6 * 3 * 32 * 32 - 1)
    assert pictures.resized(siglip) is pictures.resized(None) is pictures
