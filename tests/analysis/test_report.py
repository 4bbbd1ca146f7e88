"""The report of a toy run with known faults: 10% of verdicts are flipped, 20% of edited images drift."""

import html
import json
import re
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import ledgers
import numpy as np
import pandas as pd
import pytest

from benchmarks.facts import measure
from repair_hf.analysis.people.agreement import edit_quality, qc_agreement, qc_metrics
from repair_hf.analysis.people.judgements import CRITERIA, read_judgements, valid_edits
from repair_hf.analysis.people.page import annotate
from repair_hf.analysis.people.sampling import draw, items_of
from repair_hf.analysis.run_data import gather
from repair_hf.cli.main import main
from repair_hf.hub.record_card import dataset_card
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import load_dropped, load_records
from repair_hf.toyworld import captions, instructions, renderer, scenes

SIZE = 40  # of a sample: accepted failures and rejected ones, or edits of a direction


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
def material(repaired_world):
    """What there is to judge."""
    return gather(repaired_world)


@pytest.fixture(scope="module")
def truth(material, repaired_world) -> dict:
    """The truth about every failure and record of the run."""
    pairs = load_pairs(repaired_world / "world")
    shown = {row["image_id"]: renderer.read_scene(row["image"]) for row in pairs.images}
    dropped = material.dropped.assign(accepted=lambda t: ~t["reason"].isin(["gt_invalid", "fp_too_similar"]))
    everything = pd.concat([material.kept.assign(accepted=True), dropped])
    genuine = np.array([is_genuine(row, shown) for row in everything.to_dict("records")])
    accepted = everything["accepted"].to_numpy(bool)
    cells = [int((accepted == a)[genuine == g].sum()) for a in (True, False) for g in (True, False)]
    drifted = {row["record_id"]: has_drifted(row) for row in material.records if row["direction"] == "t2i"}
    return {"qc": qc_metrics(cells), "drifted": drifted, "shown": shown}


def judgements(path: Path, task: str, answers: dict, annotator: str = "ann") -> str:
    path.write_text(json.dumps({"task": task, "annotator": annotator, "answers": answers}))
    return str(path)


@pytest.fixture(scope="module")
def judged(material, truth, tmp_path_factory) -> list[str]:
    """Files of somebody who knows the truth about the sample and nothing else."""
    files = []
    for task in ("qc", "edits"):
        answers = {}
        for row in draw(material, task, size=SIZE).to_dict("records"):
            if task == "qc":
                answer = {"verdict": "genuine" if is_genuine(row, truth["shown"]) else "fp_too_similar"}
            else:
                is_bad = truth["drifted"].get(row["record_id"], False)
                answer = dict.fromkeys(CRITERIA, True) | {"mode": "scaffold_drift" if is_bad else None}
                answer |= {"scaffold_kept": not is_bad, "valid_contrast": not is_bad}
            answers[row["item"]] = answer
        files.append(judgements(tmp_path_factory.mktemp("judged") / f"{task}.json", task, answers))
    return files


def test_the_audit_is_found_as_wrong_as_it_was_made(material, judged, truth):
    row = qc_agreement(items_of(material, "qc"), read_judgements(judged)["qc"]).iloc[0]
    for name in ("precision", "recall", "accuracy", "kappa"):
        assert row[f"{name}_low"] <= truth["qc"][name] <= row[f"{name}_high"], name
    assert row["recall_low"] < 0.95  # the turned verdicts are seen: an audit without fault would have a recall of 1


def test_drifted_edits_are_found(material, repaired_world, judged, truth):
    table = edit_quality(items_of(material, "edits"), read_judgements(judged)["edits"])
    table = table.set_index(["group", "criterion"])
    kept = 1 - np.mean(list(truth["drifted"].values()))
    found = table.loc[("t2i", "scaffold_kept")]
    assert 0.03 < 1 - kept < 0.3  # choosing the nearest of three leaves fewer than the 20% that were made
    assert found["low"] <= kept <= found["high"] < 1
    good = 1 - sum(truth["drifted"].values()) / len(load_records(repaired_world / "records"))
    found = table.loc[("all", "valid_contrast")]
    assert found["low"] <= good <= found["high"]
    sample = set(draw(material, "edits", size=SIZE)["record_id"])
    assert valid_edits(judged) == {name for name in sample if not truth["drifted"].get(name, False)}


def test_two_people_who_disagree_on_all_give_no_number(material, repaired_world, tmp_path, capsys, caplog):
    """What they say of items that the run lacks is left out; of such items alone there is nothing to report."""
    items = [*items_of(material, "qc")["item"][:8], "x"]
    files = [
        judgements(tmp_path / f"{name}.json", "qc", {item: {"verdict": verdict} for item in items}, name)
        for name, verdict in {"ann": "genuine", "bob": "gt_invalid"}.items()
    ]
    words = ["analyze", str(repaired_world / "records"), "--output", str(tmp_path / "out"), "--judgements"]
    assert main([*words, *files]) == 0
    assert "Left out 2 judgements (qc) of items that" in caplog.text
    printed = capsys.readouterr().out
    assert not re.search(r"\bnan\b", printed + (tmp_path / "out" / "report.html").read_text())
    assert pd.read_csv(tmp_path / "out" / "agreement_qc.csv")["precision"].isna().all()
    assert pd.read_csv(tmp_path / "out" / "annotators_qc.csv")["agreement"].item() == 0
    records, folder = load_records(repaired_world / "records"), repaired_world / "records"
    card, _ = dataset_card(folder, folder, "me/toy", records, load_dropped(folder), judgements=files)
    assert "People judged 0 of its verdicts." in card and "nan" not in card
    other = judgements(tmp_path / "other.json", "qc", {"x": {"verdict": "genuine"}})
    assert main([*words, other]) == 2
    assert "holds none of their items" in capsys.readouterr().err


def test_the_page_shows_nothing_that_annotators_must_not_know(material, repaired_world, tmp_path):
    for task, roles in {"qc": ["q", "gt", "fp"], "edits": ["q", "gt", "fp", "edit"]}.items():
        sheet = annotate(repaired_world / "records", task, tmp_path / f"{task}.html", size=3)
        content = json.loads(html.unescape(re.search('data-content="([^"]*)"', sheet.path.read_text())[1]))
        drawn = draw(material, task, size=3)
        assert [item["item"] for item in content["items"]] == drawn["item"].tolist()
        pictures = set()
        for item in content["items"]:
            assert set(item) == {"item", "cells"} and list(item["cells"]) == roles
            pictures |= {cell["picture"] for cell in item["cells"].values() if "picture" in cell}
        assert pictures == set(content["pictures"]) and len(content["items"]) == sheet.n_items == 6
        assert all(picture.startswith("data:image/webp;base64,") for picture in content["pictures"].values())
    again = annotate(repaired_world / "records", task, tmp_path / "again.html", size=3)
    assert again.path.read_text() == sheet.path.read_text()


def test_the_sample_is_stratified_and_seeded(material):
    drawn = draw(material, "qc", size=40, seed=1)
    assert drawn["accepted"].value_counts().to_dict() == {True: 40, False: 40}
    assert drawn.equals(draw(material, "qc", size=40, seed=1))
    assert not drawn.equals(draw(material, "qc", size=40, seed=2))
    assert items_of(material, "qc")["item"].nunique() == len(material.kept) + len(material.dropped)
    edits = draw(material, "edits", size=30, seed=1)
    assert edits["direction"].value_counts().to_dict() == {"t2i": 30, "i2t": 30}


@pytest.fixture(scope="module")
def report(repaired_world, judged, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    with redirect_stdout(StringIO()) as shown:
        assert main(["analyze", str(repaired_world), "--output", str(folder), "--judgements", *judged]) == 0
    assert "The audit against people" in shown.getvalue()
    assert "no valid hard contrast" in " ".join(shown.getvalue().split())
    return folder


def test_the_report_is_one_page_with_its_files(report):
    page = (report / "report.html").read_text()
    assert "http://" not in page and "https://" not in page and "<script" not in page
    texts = re.sub(r"<style.*?</style>|<[^>]*>", " ", page, flags=re.DOTALL)
    assert "T2I" in texts and not re.search(r"\b(t2i|i2t)\b", texts)
    for name in "funnel dropped agreement_qc agreement_edits costs errors".split():
        assert f'id="{name}"' in page and len(pd.read_csv(report / f"{name}.csv")) > 0


def test_the_numbers_of_the_report_are_those_of_the_records(report, material, repaired_world):
    funnel = pd.read_csv(report / "funnel.csv").set_index("stage")
    for way in ("t2i", "i2t"):
        of_way = (material.dropped["direction"] == way).sum(), (material.kept["direction"] == way).sum()
        assert (funnel[way]["mined"], funnel[way]["became records"]) == (sum(of_way), of_way[1])
    errors = pd.read_csv(report / "errors.csv").set_index("error")
    named = [set(types) for types in material.kept[material.kept["direction"] == "i2t"]["error_types"]]
    assert errors.loc["Count", "i2t"] == pytest.approx(np.mean(["Count" in types for types in named]))
    assert errors.loc["multi-label density", "i2t"] == pytest.approx(np.mean([len(types) for types in named]))
    costs = pd.read_csv(report / "costs.csv")
    answers = len(ledgers.rows(repaired_world / "records"))
    assert costs[costs["direction"] == "both"]["answers"].item() == answers


def test_the_card_says_how_people_judged(repaired_world, judged):
    folder = repaired_world / "records"
    card = partial(dataset_card, folder, folder, "me/toy", load_records(folder), load_dropped(folder))
    text, _ = card(judgements=judged)
    count = len(json.loads(Path(judged[0]).read_text())["answers"])
    assert f"People judged {count} of its verdicts: " in text and f"People judged {2 * SIZE} edits" in text
    assert "was not compared with people" not in text and "was not compared with people" in card()[0]


def test_the_share_of_edits_that_fit_is_in_report_card_and_sheet(report, repaired_world, tmp_path):
    folder, sheet = repaired_world / "records", tmp_path / "sheet.html"
    rows = json.loads((folder / "summary.json").read_text())["checked"]
    assert pd.read_csv(report / "checked.csv").to_dict("records") == [pytest.approx(row) for row in rows]
    assert sum(row["checked"] for row in rows if row["error_type"] == "all") == 100
    card, _ = dataset_card(folder, folder, "me/toy", load_records(folder), load_dropped(folder))
    assert main(["show", str(folder), "--output", str(sheet)]) == 0
    for row in rows:
        if row["error_type"] == "all":
            sentence = (
                f"An LLM checked {row['checked']} {row['direction'].upper()} edits: {row['share']:.1%} fit their query"
            )
            assert all(sentence in text for text in (card, (report / "report.html").read_text(), sheet.read_text()))


def test_scenes_judge_as_somebody_who_knows_the_truth(material, repaired_world, truth):
    found, kept = measure(repaired_world), material.kept
    assert found["audit"] == pytest.approx({name: truth["qc"][name] for name in ("precision", "recall")})
    assert found["t2i"]["minimal"] == pytest.approx(1 - np.mean(list(truth["drifted"].values())))
    assert found["t2i"]["fp_wrong"] == 1 and found["t2i"]["valid"] == found["t2i"]["matches"] < 1
    for way in ("t2i", "i2t"):
        dropped = material.dropped.query("direction == @way")["reason"].value_counts()
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


def test_dropped_failures_are_shown_with_the_pictures_of_the_run(repaired_world, tmp_path, capsys):
    page = tmp_path / "dropped.html"
    assert main(["show", str(repaired_world / "records"), "--dropped", "gt_invalid", "--output", str(page)]) == 0
    assert "left out of these records" not in page.read_text() and "--pairs" not in capsys.readouterr().out
