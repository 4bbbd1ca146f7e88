"""The report of a toy run with known faults: 10% of verdicts are flipped, 20% of edited images drift."""

import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import ledgers
import numpy as np
import pandas as pd
import pytest

from benchmarks.facts import measure
from repair_hf.analysis.people.agreement import edit_quality, qc_agreement, qc_metrics
from repair_hf.analysis.people.sampling import draw, lay_out
from repair_hf.analysis.run_data import gather
from repair_hf.cli.main import main
from repair_hf.hub.record_card import dataset_card
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.answers import CRITERIA, read_answers, read_items
from repair_hf.records.dataset import load_dropped, load_records
from repair_hf.runtime.options import UserError
from repair_hf.toyworld import captions, instructions, renderer, scenes


def is_genuine(row, shown) -> bool:
    """Whether the query's own annotation holds and its false positive is wrong, by the scenes themselves."""
    text, image = ("q_text", "{}_id") if row["direction"] == "t2i" else ("{}_text", "q_id")
    gt, fp = (scenes.holds(captions.parse(row[text.format(r)]), shown[row[image.format(r)]]) for r in ("gt", "fp"))
    return gt and not fp


def has_drifted(row) -> bool:
    """Whether the editor changed what the instruction had left alone."""
    before, after = (renderer.read_scene(row[f"{role}_image"]) for role in ("fp", "edit"))
    return instructions.apply_image_instruction(before, row["edit_instruction"]) != after


@pytest.fixture(scope="module")
def truth(toy_run) -> dict:
    """The truth about every failure and record of the run."""
    material, pairs = gather(toy_run), load_pairs(toy_run / "world")
    shown = {row["image_id"]: renderer.read_scene(row["image"]) for row in pairs.images}
    dropped = material.dropped.assign(accepted=lambda t: ~t["reason"].isin(["gt_invalid", "fp_too_similar"]))
    everything = pd.concat([material.kept.assign(accepted=True), dropped])
    genuine = np.array([is_genuine(row, shown) for row in everything.to_dict("records")])
    accepted = everything["accepted"].to_numpy(bool)
    cells = [int((accepted == a)[genuine == g].sum()) for a in (True, False) for g in (True, False)]
    drifted = {row["record_id"]: has_drifted(row) for row in material.records if row["direction"] == "t2i"}
    return {"qc": qc_metrics(cells), "drifted": drifted, "shown": shown}


@pytest.fixture(scope="module")
def judged(toy_run, truth) -> Path:
    """The same run, judged by somebody who knows the truth about the sample and nothing else."""
    material, folder = gather(toy_run), toy_run / "records"
    for task in ("qc", "edits"):
        drawn = draw(material, task, size=60, seed=0)
        lay_out(material, task, size=60, seed=0)
        rows = []
        for row in drawn.to_dict("records"):
            if task == "qc":
                said = {"verdict": "genuine" if is_genuine(row, truth["shown"]) else "fp_too_similar"}
            else:
                is_bad = truth["drifted"].get(row["record_id"], False)
                said = dict.fromkeys(CRITERIA, True) | {"mode": "scaffold_drift" if is_bad else None}
                said |= {"scaffold_kept": not is_bad, "valid_contrast": not is_bad}
            rows.append({"annotator": "ann", "item": row["item"], **said})
        (folder / "people" / task / "answers").mkdir()
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "people" / task / "answers" / "ann.jsonl").write_text(lines)
    return toy_run


@pytest.fixture
def unjudged(toy_run, tmp_path) -> Path:
    return shutil.copytree(toy_run / "records", tmp_path / "records", ignore=shutil.ignore_patterns("people"))


def test_the_audit_is_found_as_wrong_as_it_was_made(judged, truth):
    folder = judged / "records" / "people" / "qc"
    row = qc_agreement(read_items(folder), read_answers(folder)).iloc[0]
    for name in ("precision", "recall", "accuracy", "kappa"):
        assert row[f"{name}_low"] <= truth["qc"][name] <= row[f"{name}_high"], name
    assert row["recall_low"] < 0.95  # the turned verdicts are seen: an audit without fault would have a recall of 1


def test_drifted_edits_are_found(judged, truth):
    folder = judged / "records" / "people" / "edits"
    table = edit_quality(read_items(folder), read_answers(folder)).set_index(["group", "criterion"])
    kept = 1 - np.mean(list(truth["drifted"].values()))
    found = table.loc[("t2i", "scaffold_kept")]
    assert 0.03 < 1 - kept < 0.3  # choosing the nearest of three leaves fewer than the 20% that were made
    assert found["low"] <= kept <= found["high"] < 1
    good = 1 - sum(truth["drifted"].values()) / len(load_records(judged / "records"))
    found = table.loc[("all", "valid_contrast")]
    assert found["low"] <= good <= found["high"]


def test_only_audited_records(judged):
    folder = judged / "records" / "people" / "edits"
    good = read_items(folder).merge(read_answers(folder), on="item")
    good = set(good[good["valid_contrast"].astype(bool)]["record_id"])
    assert set(load_records(judged / "records", audited=True)["record_id"]) == good and good


def test_nobody_has_looked(unjudged, tmp_path, capsys):
    with pytest.raises(UserError, match="The records of .* have no annotations.*annotate edits"):
        load_records(unjudged, audited=True)
    assert main(["analyze", str(unjudged), "--output", str(tmp_path / "report")]) == 0
    assert "The audit against people" not in capsys.readouterr().out


def test_the_sample_shows_nothing_that_annotators_must_not_know(judged):
    for task, roles in {"qc": ["q", "gt", "fp"], "edits": ["q", "gt", "fp", "edit"]}.items():
        folder = judged / "records" / "people" / task / "shown"
        for item in map(json.loads, (folder / "items.jsonl").read_text().splitlines()):
            assert set(item) == {"item", "direction", "cells"} and list(item["cells"]) == roles
            pictures = [shown["picture"] for shown in item["cells"].values() if "picture" in shown]
            assert all((folder / "pictures" / name).is_file() for name in pictures)


def test_the_sample_is_stratified_and_seeded(toy_run):
    material = gather(toy_run)
    drawn = draw(material, "qc", size=40, seed=1)
    assert drawn["accepted"].value_counts().to_dict() == {True: 40, False: 40}
    assert drawn.equals(draw(material, "qc", size=40, seed=1))
    assert not drawn.equals(draw(material, "qc", size=40, seed=2))
    sizes = drawn.drop_duplicates(["accepted", "direction"])["population"].sum()
    assert sizes == len(material.kept) + len(material.dropped)
    edits = draw(material, "edits", size=30, seed=1)
    assert edits["direction"].value_counts().to_dict() == {"t2i": 30, "i2t": 30}


def test_another_sample_does_not_overwrite_what_was_begun(judged):
    material = gather(judged)
    with pytest.raises(UserError, match="was begun with size 60 and seed 0"):
        lay_out(material, "qc", size=10, seed=0)


@pytest.fixture(scope="module")
def report(judged) -> Path:
    with redirect_stdout(StringIO()) as shown:
        assert main(["analyze", str(judged), "--output", str(judged / "report")]) == 0
    assert "The audit against people" in shown.getvalue()
    assert "no valid hard contrast" in " ".join(shown.getvalue().split())
    return judged / "report"


def test_the_report_is_one_page_with_its_files(report):
    page = (report / "report.html").read_text()
    assert "http://" not in page and "https://" not in page and "<script" not in page
    for name in "funnel dropped agreement_qc agreement_edits costs errors".split():
        assert f'id="{name}"' in page and len(pd.read_csv(report / f"{name}.csv")) > 0


def test_the_numbers_of_the_report_are_those_of_the_records(report, judged):
    material = gather(judged)
    funnel = pd.read_csv(report / "funnel.csv").set_index("stage")
    for way in ("t2i", "i2t"):
        of_way = (material.dropped["direction"] == way).sum(), (material.kept["direction"] == way).sum()
        assert (funnel[way]["mined"], funnel[way]["became records"]) == (sum(of_way), of_way[1])
    errors = pd.read_csv(report / "errors.csv").set_index("error")
    named = [set(types) for types in material.kept[material.kept["direction"] == "i2t"]["error_types"]]
    assert errors.loc["Count", "i2t"] == pytest.approx(np.mean(["Count" in types for types in named]))
    assert errors.loc["multi-label density", "i2t"] == pytest.approx(np.mean([len(types) for types in named]))
    costs = pd.read_csv(report / "costs.csv")
    answers = len(ledgers.rows(judged / "records"))
    assert costs[costs["direction"] == "both"]["answers"].item() == answers


def test_the_card_says_how_people_judged(judged, tmp_path):
    folder = judged / "records"
    text = dataset_card(folder, folder, "me/toy", load_records(folder), load_dropped(folder))[0]
    judged_items = len(read_items(folder / "people" / "qc"))
    assert f"People judged {judged_items} of its verdicts" in text and "People judged 120 edits" in text
    assert "was not compared with people" not in text


def test_scenes_judge_as_somebody_who_knows_the_truth(toy_run, truth):
    found, kept = measure(toy_run), gather(toy_run).kept
    assert found["audit"] == pytest.approx({name: truth["qc"][name] for name in ("precision", "recall")})
    assert found["t2i"]["minimal"] == pytest.approx(1 - np.mean(list(truth["drifted"].values())))
    assert found["t2i"]["fp_wrong"] == 1 and found["t2i"]["valid"] == found["t2i"]["matches"] < 1
    for way in ("t2i", "i2t"):
        dropped = gather(toy_run).dropped.query("direction == @way")["reason"].value_counts()
        mined, rejected = len(kept.query("direction == @way")) + dropped.sum(), dropped.get("gt_invalid", 0)
        both = rejected + dropped.get("fp_too_similar", 0)
        assert found[way]["passed"] == pytest.approx(1 - both / mined)
        assert found[way]["criterion_1"] == pytest.approx(rejected / both)
    texts = kept[kept["direction"] == "i2t"]
    genuine = texts[[is_wrong(row, truth["shown"]) for row in texts.to_dict("records")]]
    assert found["i2t"]["edits"] == len(texts) and found["i2t"]["fp_wrong"] == pytest.approx(len(genuine) / len(texts))
    assert found["i2t"]["valid"] == found["i2t"]["fp_wrong"] <= found["i2t"]["matches"] == 1  # this LLM edits well
    for kind, share in found["error_kinds"].items():
        assert share == pytest.approx(np.mean([kind in kinds for kinds in genuine["error_types"]])), kind


def is_wrong(row, shown) -> bool:
    return not scenes.holds(captions.parse(row["fp_text"]), shown[row["q_id"]])


def test_dropped_failures_are_shown_with_the_pictures_of_the_run(toy_run, tmp_path, capsys):
    page = tmp_path / "dropped.html"
    assert main(["show", str(toy_run / "records"), "--dropped", "gt_invalid", "--output", str(page)]) == 0
    assert "left out of these records" not in page.read_text() and "--pairs" not in capsys.readouterr().out
