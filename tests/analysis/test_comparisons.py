"""Whether repair helped, by what was evaluated below a run's folder; and which records the report is about."""

import json
import shutil
from pathlib import Path

import pytest
from made_evaluations import SHARES, evaluated, finish

from repair_hf.analysis.evaluations import find_evaluations
from repair_hf.analysis.repair_findings import repair_findings
from repair_hf.analysis.report import Finding
from repair_hf.analysis.run_data import gather
from repair_hf.cli.main import main
from repair_hf.runtime.stage import Stage


def findings(root: Path | None) -> list[Finding]:
    return repair_findings(root, find_evaluations(root))


@pytest.fixture
def trained(tmp_path):
    """The folder of a training with records, without weights."""

    def write(name: str, records: str | None = "r") -> Path:
        inputs = {"model": "a/base", "pairs": "my photos", "records": records}
        Stage("train", tmp_path / name, inputs=inputs).run(lambda folder: {"steps": 46})
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("bounds", "images", "verdict", "cell"),
    [
        ((0.05, 0.15), 1000, "Yes: ", "+10.0 [+5.0, +15.0] *"),
        ((-0.02, 0.06), 1000, "Undecided: ", "+2.0 [-2.0, +6.0]"),
        ((-0.3, -0.1), 1000, "No: ", "-20.0 [-30.0, -10.0] *"),
        ((0.05, 0.15), 30, "Undecided: ", "+10.0 [+5.0, +15.0] *"),
    ],
)
def test_repair_helped_if_it_beats_plain_training(tmp_path, bounds, images, verdict, cell):
    """Both models gain a lot over the base, which answers nothing."""
    evaluated(tmp_path / "evaluate", SHARES, ("repaired", "plain", *bounds), images=images)
    helped, models, differences, ranks = findings(tmp_path)
    assert helped.note.startswith(verdict) and ("30 images are too few" in helped.note) == (images == 30)
    assert helped.rows == (["", "repaired − plain"], [["R@1, both directions", cell + "  " * ("*" not in cell)]])
    levels = {"random": 1 / images} | SHARES
    assert models.rows[1] == [[name, f"{100 * share:.1f}"] for name, share in levels.items()]
    row = differences.data[["comparison", "metric", "low", "high"]].to_numpy().tolist()
    assert row == [["repaired − plain", "t2i_R@1", *bounds]]
    assert differences.rows[1] == [["repaired − plain", "T2I R@1", cell + "  " * ("*" not in cell)]]
    assert ranks.rows[1] == [["repaired − plain", "T2I", "3", "1"]]


def test_the_first_comparison_of_the_newest_evaluation_decides(tmp_path):
    for number, gain in ((1, -0.2), (2, -0.2), (10, 0.1)):
        shares = dict.fromkeys(("base", "plain", "one", "two"), 0.5)
        compared = [("one", "plain", gain, gain + 0.1), ("two", "plain", -0.4, -0.3)]
        evaluated(tmp_path / f"round-{number}" / "evaluate", shares, *compared)
    assert findings(tmp_path)[0].note.startswith("Yes: round-10--evaluate--one − round-10--evaluate--plain is +15.0 [")
    evaluated(tmp_path / "a", shares, ("two", "plain", -0.4, -0.3), split="test")
    note = findings(tmp_path)[0].note
    assert note.startswith("No: a--two − a--plain is ") and "on the split test. a--plain was trained without" in note


def test_the_same_comparison_in_two_folders_counts_once(tmp_path):
    for place in ("a", "b"):
        evaluated(tmp_path / place, SHARES, ("repaired", "plain", 0.1, 0.2))
        path = tmp_path / place / "metrics.json"
        metrics = {
            name: own | {"model_digest": name, "pairs_fingerprint": "f"}
            for name, own in json.loads(path.read_text()).items()
        }
        path.write_text(json.dumps(metrics))
    assert [repair.model.parent.name for repair in find_evaluations(tmp_path).repairs] == ["b"]  # the newest
    metrics["plain"]["model_digest"] = "other"
    path.write_text(json.dumps(metrics))
    assert len(find_evaluations(tmp_path).repairs) == 2


def test_an_evaluation_that_failed_holds_no_models(tmp_path):
    for place in ("one", "several"):
        evaluated(tmp_path / place, {"base": 0.5} if place == "one" else SHARES, ("repaired", "plain", 0.1, 0.2))
        (tmp_path / place / "summary.json").unlink()
    found = find_evaluations(tmp_path)
    assert found.measured == {}
    assert findings(tmp_path)[0].note.startswith("Not measured")


def test_other_measures_are_shown_and_decide_nothing(tmp_path):
    """Whatever an evaluation compares is drawn, and a longer plain training too; R@1 of the repaired model decides."""
    evaluated(tmp_path, SHARES | {"longer": 0.6}, ("repaired", "plain", 0.1, 0.2))
    path = tmp_path / "differences.json"
    found = json.loads(path.read_text())
    rise, fall = {"difference": 0.15, "low": 0.1, "high": 0.2}, {"difference": -0.2, "low": -0.3, "high": -0.1}
    undecided = {"t2i_MRR": rise, "t2i_R@5": rise, "contrast_group": rise}
    found["repair"][0]["differences"] |= {"web_t2i_R@1": fall, "contrast_caption": rise, **undecided}
    found["repair"][0]["summary"] |= {"kept_R@1": fall, "contrast": rise}
    found |= {"reference": "plain", "differences": {"longer": {"t2i_R@1": fall}}}
    path.write_text(json.dumps(found))
    helped, _, differences, _ = findings(tmp_path)
    assert helped.note.startswith("Yes: ")
    assert helped.table[""].tolist() == ["R@1, both directions", "R@1 on further pairs", "contrast set"]
    assert [mark.kind for mark in helped.plot.marks] == ["rise", "fall", "rise"]
    assert [tuple(row) for row in differences.data[["comparison", "metric"]].to_numpy()] == [
        *(("repaired − plain", name) for name in ("t2i_R@1", "web_t2i_R@1", "contrast_caption")),
        ("longer − plain", "t2i_R@1"),
    ]


def test_without_a_plain_model_nobody_knows(tmp_path, trained):
    assert findings(None)[0].note.startswith("Not measured. Run `repair-hf train` with and without `--records`")
    repaired, plain, output = trained("repaired"), tmp_path / "plain", tmp_path / "validation"
    train = f"train --model a/base --pairs 'my photos' --max-steps 46 --output {plain}`"
    evaluate = f"evaluate a/base {plain} {repaired} --pairs 'my photos' --split validation --output {output}`"
    assert f"Not measured. Run `repair-hf {train}, then `repair-hf {evaluate}." == findings(tmp_path)[0].note
    evaluated(tmp_path / "base", {"base": 0.25})
    evaluated(output, {"base": 0.25, "repaired": 0.5})
    (output / "differences.json").write_text(
        json.dumps({"reference": "base", "differences": {}, "repair": [{"model": "repaired", "reference": None}]})
    )
    helped, models = findings(tmp_path)
    assert helped.note.startswith("Not known") and train in helped.note and helped.plot is None
    assert models.table["T2I R@1"].tolist() == ["0.1", "25.0", "25.0", "50.0"]
    trained("plain", records=None)
    assert findings(tmp_path)[0].note.endswith(f"Run `repair-hf {evaluate}.")


def test_evaluations_of_two_splits_below_one_root_are_told_apart(tmp_path):
    """They have models of the same names."""
    for split in ("validation", "test"):
        evaluated(tmp_path / split, SHARES, ("repaired", "plain", 0.1, 0.2))
    _, models, differences, _ = findings(tmp_path)
    names = [f"{split}--{name}" for split in ("test", "validation") for name in SHARES]
    assert models.table["model"].tolist() == ["random", *names]
    assert differences.table["comparison"].tolist() == [f"{s}--repaired − {s}--plain" for s in ("test", "validation")]


def test_a_report_is_about_the_records_of_the_evaluated_models(tmp_path, illustrated_folder):
    """A model that was trained on `records3` is shown with their examples, drops and cost; others are named."""
    for name in ("records", "records3", "elsewhere/records"):
        finish(shutil.copytree(illustrated_folder, tmp_path / "run" / name), "synthesize")
    (tmp_path / "run" / "elsewhere").rename(tmp_path / "elsewhere")
    run = tmp_path / "run"
    assert [folder.name for folder in gather(run).folders] == ["records"]
    assert gather(run).ignored == {str(run / "records3"): "no evaluated model was trained on it"}
    for name, records in (("plain", None), ("repaired", [str(run / "records3"), str(tmp_path / "elsewhere/records")])):
        Stage("train", run / name, inputs={"model": "a/base", "records": records}).run(lambda folder: {"steps": 46})
    evaluated(run / "evaluate", SHARES, ("repaired", "plain", 0.1, 0.2))
    metrics = json.loads((run / "evaluate" / "metrics.json").read_text())
    for name in ("plain", "repaired"):
        metrics[name]["model"] = str(run / name)
    (run / "evaluate" / "metrics.json").write_text(json.dumps(metrics))
    data = gather(run)
    assert data.folders == [run / "records3", tmp_path / "elsewhere/records"] and len(data.kept) == 48
    assert data.ignored == {str(run / "records"): "no evaluated model was trained on it"}
    shutil.rmtree(tmp_path / "elsewhere")
    assert gather(run).ignored[str(tmp_path / "elsewhere/records")].startswith("it is not here")
    assert main(["analyze", str(run)]) == 0
    page = (run / "report" / "report.html").read_text()
    assert f"Ignored {run / 'records'}: no evaluated model was trained on it." in page and "24 records" in page
