"""What the report says about a run: whether repair helped, where failures were lost, which errors they had."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset

from repair_hf.analysis.forest import forest
from repair_hf.analysis.report import write_report
from repair_hf.analysis.run_data import RunData
from repair_hf.analysis.run_findings import DENSITY, blend_finding, error_finding, funnel, lost_at, repair_findings
from repair_hf.analysis.tables import difference_cell
from repair_hf.evaluation.comparison import verdict
from repair_hf.runtime.stage import Stage

NOTHING = RunData("run", "run", None, (), Dataset.from_dict({}), pd.DataFrame(), pd.DataFrame())


def evaluated(folder: Path, shares: dict[str, float], *gains: tuple[str, str, float, float]) -> None:
    """Write what `repair-hf evaluate` leaves: R@1 by model, and a model, its baseline and the bounds of their gain."""
    metrics = {
        name: {"t2i_R@1": share, "intervals": {"t2i_R@1": [share, share]}, "n_images": 200}
        for name, share in shares.items()
    }
    for name in shares if len(shares) > 1 else ("",):
        (folder / name).mkdir(parents=True)
        (folder / name / "ranks.parquet").touch()
        (folder / name / "metrics.json").write_text(json.dumps(metrics.get(name) or metrics[next(iter(shares))]))
    if len(shares) > 1:
        compared = [
            {
                "model": model,
                "reference": plain,
                "verdict": verdict([{"low": low, "high": high}], 200),
                "differences": {"t2i_R@1": {"difference": (low + high) / 2, "low": low, "high": high}},
                "queries": {"t2i": {"repaired": 3, "broken": 1}},
            }
            for model, plain, low, high in gains
        ]
        (folder / "metrics.json").write_text(json.dumps(metrics))
        (folder / "differences.json").write_text(json.dumps({"repair": compared}))


@pytest.fixture
def trained(tmp_path):
    """The folder of a training with records, without weights."""

    def write(name: str) -> Path:
        Stage("train", tmp_path / name, inputs={"model": "a/base", "pairs": "my photos", "records": "r"}).run(
            lambda folder: {"steps": 46}
        )
        return tmp_path / name

    return write


SHARES = {"base": 0.0, "plain": 0.4, "repaired": 0.5}


@pytest.mark.parametrize(
    "bounds, verdict, cell",
    [
        ((0.05, 0.15), "Yes", "+10.0 [+5.0, +15.0] *"),
        ((-0.02, 0.06), "Undecided", "+2.0 [-2.0, +6.0]"),
        ((-0.3, -0.1), "No", "-20.0 [-30.0, -10.0] *"),
    ],
)
def test_repair_helped_if_it_beats_plain_training(tmp_path, bounds, verdict, cell):
    """Both models gain a lot over the base, which answers nothing."""
    evaluated(tmp_path / "evaluate", SHARES, ("repaired", "plain", *bounds))
    found, ranks = repair_findings(tmp_path)
    assert found.note.startswith(f"{verdict}: ")
    levels = [[name, f"{100 * share:.1f}"] for name, share in SHARES.items()]
    assert [[text.strip() for text in row] for row in found.rows[1]] == [*levels, ["repaired − plain", cell]]
    assert found.data[["comparison", "metric", "low", "high"]].to_numpy().tolist() == [
        ["repaired − plain", "t2i_R@1", *bounds]
    ]
    assert ranks.rows[1] == [["repaired − plain", "t2i", "3", "1"]]


@pytest.mark.parametrize(
    "gains, note",
    [
        ([(0.1, 0.2), (-0.2, -0.1)], "Undecided: R@1 rose in 1 and fell in 1 of 2"),
        ([(0.1, 0.2), (-0.1, 0.1)], "Undecided: R@1 rose in 1 and fell in 0 of 2"),  # one of several is not yet a yes
        ([(-0.1, 0.1), (-0.2, -0.1)], "Undecided: R@1 rose in 0 and fell in 1 of 2"),
        ([(-0.3, -0.2), (-0.2, -0.1)], "No: R@1 rose in 0 and fell in 2 of 2"),
        ([(0.1, 0.2), (0.1, 0.2)], "Yes: R@1 rose in 2 and fell in 0 of 2"),
    ],
)
def test_the_verdict_counts_every_comparison(tmp_path, gains, note):
    compared = [(name, "plain", *each) for name, each in zip(("one", "two"), gains, strict=True)]
    evaluated(tmp_path, dict.fromkeys(("base", "plain", "one", "two"), 0.5), *compared)
    found = repair_findings(tmp_path)[0].note
    assert found.startswith(note) and ("T2I R@1 of two − plain." in found) == (gains[1][1] < 0)


def test_few_images_are_said_to_be_too_few(tmp_path):
    evaluated(tmp_path, SHARES, ("repaired", "plain", 0.1, 0.2))
    path = tmp_path / "metrics.json"
    path.write_text(path.read_text().replace('"n_images": 200', '"n_images": 14'))
    assert "14 images are too few for a conclusion: take 200 or more." in repair_findings(tmp_path)[0].note


def test_the_same_comparison_in_two_folders_counts_once(tmp_path):
    for place in ("a", "b"):
        evaluated(tmp_path / place, SHARES, ("repaired", "plain", 0.1, 0.2))
        path = tmp_path / place / "metrics.json"
        metrics = {name: one | {"model_digest": name, "pairs_fingerprint": "f"}
                   for name, one in json.loads(path.read_text()).items()}  # fmt: skip
        path.write_text(json.dumps(metrics))
    assert "rose in 1 and fell in 0 of 1" in repair_findings(tmp_path)[0].note
    metrics["plain"]["model_digest"] = "other"
    path.write_text(json.dumps(metrics))
    assert "rose in 2 and fell in 0 of 2" in repair_findings(tmp_path)[0].note


def test_other_measures_are_shown_and_decide_nothing(tmp_path):
    """Whatever an evaluation compares is drawn, and a longer plain training too; R@1 of the repaired model decides."""
    evaluated(tmp_path, SHARES | {"longer": 0.6}, ("repaired", "plain", 0.1, 0.2))
    path = tmp_path / "differences.json"
    found = json.loads(path.read_text())
    rise, fall = {"difference": 0.15, "low": 0.1, "high": 0.2}, {"difference": -0.2, "low": -0.3, "high": -0.1}
    undecided = {"t2i_MRR": rise, "t2i_R@5": rise, "contrast_group": rise}
    found["repair"][0]["differences"] |= {"web_t2i_R@1": fall, "contrast_caption": rise, **undecided}
    found |= {"reference": "plain", "differences": {"longer": {"t2i_R@1": fall}}}
    path.write_text(json.dumps(found))
    helped = repair_findings(tmp_path)[0]
    assert helped.note.startswith("Yes: R@1 rose in 1 and fell in 0 of 1")
    assert [tuple(row) for row in helped.data[["comparison", "metric"]].to_numpy()] == [
        *(("repaired − plain", name) for name in ("t2i_R@1", "web_t2i_R@1", "contrast_caption")),
        ("longer − plain", "t2i_R@1"),
    ]


def test_the_plot_shows_the_numbers_of_the_table_and_tells_them_in_words(tmp_path):
    """In the page itself: each interval is drawn at its numbers, beside a line at 0."""
    evaluated(tmp_path, SHARES, ("repaired", "plain", -0.021, 0.163))
    helped = repair_findings(tmp_path)[0]
    long = "a-folder-with-a-name-of-many-letters-<b>"
    rise = {"low": 0.01, "difference": 0.02, "high": 0.03}
    more = helped.data.assign(comparison=f"{long} − plain", metric="contrast_caption", **rise)
    data = pd.concat([helped.data, more, more.assign(metric="web_t2i_R@1", low=-0.2, difference=-0.15, high=-0.1)])
    helped = replace(helped, data=data, plot=forest(data))
    write_report(tmp_path, "title", "counts", [helped], [])
    found = re.findall(r"<svg.*?</svg>", (tmp_path / "report.html").read_text(), re.DOTALL)
    root = ET.fromstring(found[0])
    saved = pd.read_csv(tmp_path / "repair.csv").to_dict("records")
    marks = [each for each in root.iter("g") if each.get("class") in ("rise", "fall", "open")]
    ticks = {float(text.text): float(text.get("x")) for text in root.iter("text") if text.get("class") == "faint"}
    (low, x_low), (high, x_high) = min(ticks.items()), max(ticks.items())
    zero = next(line for line in root.iter("line") if line.get("class") == "zero")
    assert float(zero.get("x1")) == float(zero.get("x2")) == ticks[0]
    assert len(marks) == len(saved) == 3 and root.find("title").text == "Did repair help?"
    for mark, row in zip(marks, saved, strict=True):
        numbers = difference_cell(row["metric"], row).strip()
        texts = ["".join(text.itertext()) for text in mark.iter("text")]
        assert texts[1] == numbers and f"{row['comparison']}: {numbers}" in root.find("desc").text
        assert row["comparison"] in texts[0]
        line, dot = mark.find("line"), mark.find("circle")
        for name, x in (("low", line.get("x1")), ("high", line.get("x2")), ("difference", dot.get("cx"))):
            points = low + (float(x) - x_low) / (x_high - x_low) * (high - low)
            assert points == pytest.approx(100 * row[name], abs=0.02)
    assert [mark.get("class") for mark in marks] == ["open", "rise", "fall"]
    assert root.get("role") == "img" and root.get("aria-labelledby").split() == [
        root.find("title").get("id"),
        root.find("desc").get("id"),
    ]


def test_the_curve_of_blends_shows_the_numbers_of_its_table_and_names_them_in_words(tmp_path):
    """In the page itself: each point is drawn at its numbers, by the scales beside it."""
    evaluated(tmp_path / "blends", dict.fromkeys(("base", "tuned@1", "tuned@0.6"), 0.5))
    shares = {"base": (0.435, 0.384, 0.816, 0.752), "tuned@1": (0.652, 0.578, 0.677, 0.643)}
    shares["tuned@0.6"] = (0.61, 0.5632, 0.751, 0.702)
    names = ("i2t_R@1", "t2i_R@1", "web_i2t_R@1", "web_t2i_R@1")
    metrics = {name: dict(zip(names, each, strict=True)) | {"intervals": {}} for name, each in shares.items()}
    (tmp_path / "blends" / "metrics.json").write_text(json.dumps(metrics))
    for name in shares:
        weight = f"weight: {name.partition('@')[2]}\n" if "@" in name else ""
        (tmp_path / "blends" / name / "config.yaml").write_text(f"model: m\n{weight}")
    kept = blend_finding(tmp_path)
    write_report(tmp_path, "title", "counts", [kept], [])
    (drawn,) = re.findall(r"<svg.*?</svg>", (tmp_path / "report.html").read_text(), re.DOTALL)
    root, saved = ET.fromstring(drawn), pd.read_csv(tmp_path / "blends.csv")

    def value(name: str, axis: str, place: str) -> float:
        """Read a place of the drawing by its scale."""
        ticks = [each for each in root.iter("text") if name in each.get("class", "").split()]
        (low, first), (high, last) = sorted((float(tick.text), float(tick.get(axis))) for tick in ticks)[
            :: len(ticks) - 1
        ]
        shift = 4 if axis == "y" else 0  # of a letter's baseline
        return low + (float(place) - first + shift) / (last - first) * (high - low)

    lines = [each for each in root.iter("g") if each.get("class") in ("i2t", "t2i")]
    found = []
    for line in lines:
        for dot, text in zip(line.iter("circle"), line.iter("text"), strict=True):
            point = value("across", "x", dot.get("cx")), value("up", "y", dot.get("cy"))
            found.append(("web", line.get("class"), float(text.text.split()[0]), *point))
    assert set(saved["model"]) == {"tuned"}
    expected = [tuple(row) for row in saved.drop(columns="model").itertuples(index=False)]
    assert [row[:3] for row in found] == [row[:3] for row in expected] and len(expected) == 6
    for row, other in zip(found, expected, strict=True):
        assert row[3:] == pytest.approx(other[3:], abs=0.05)
    assert [(row[2], *row[3:]) for row in expected[:3]] == [(0, 43.5, 81.6), (0.6, 61.0, 75.1), (1, 65.2, 67.7)]
    shown = kept.rows[1]
    for (_, side, weight, gained, also), row in zip(expected, shown, strict=True):
        words = f"{side.upper()}, weight {weight:g}: {gained:.1f} and on web {also:.1f}"
        assert words in root.find("desc").text and row[1:] == [
            "tuned",
            side.upper(),
            f"{weight:g}",
            f"{gained:.1f}",
            f"{also:.1f}",
        ]
    assert root.get("role") == "img" and root.get("aria-labelledby") == "blends-title blends-text"


def test_without_blends_on_further_pairs_there_is_no_curve(tmp_path):
    assert blend_finding(None) is None
    evaluated(tmp_path, SHARES, ("repaired", "plain", 0.1, 0.2))
    assert blend_finding(tmp_path) is None


def test_without_a_plain_model_nobody_knows(tmp_path, trained):
    assert repair_findings(None)[0].note.startswith("Not measured")
    evaluated(tmp_path / "base", {"base": 0.25})
    evaluated(tmp_path / "evaluate", {"base": 0.25, "repaired": 0.5})
    path = tmp_path / "evaluate" / "differences.json"
    path.write_text(json.dumps({"repair": [{"model": "repaired", "reference": None}]}))
    (found,) = repair_findings(tmp_path)
    assert found.note.startswith("Not known") and "without `--records`" in found.note
    assert found.table["T2I R@1"].tolist() == ["25.0", "50.0", "25.0"] and found.plot is None
    metrics = json.loads((tmp_path / "evaluate" / "metrics.json").read_text())
    metrics["repaired"]["model"] = str(trained("repaired"))
    (tmp_path / "evaluate" / "metrics.json").write_text(json.dumps(metrics))
    note = repair_findings(tmp_path)[0].note
    assert f"train --model a/base --pairs 'my photos' --max-steps 46 --output {tmp_path / 'plain'}`" in note
    assert f"evaluate a/base {tmp_path / 'plain'} {tmp_path / 'repaired'} --pairs 'my photos'" in note


def test_evaluations_of_two_splits_below_one_root_are_told_apart(tmp_path):
    """They have models of the same names."""
    for split in ("validation", "test"):
        evaluated(tmp_path / split, SHARES, ("repaired", "plain", 0.1, 0.2))
    found = repair_findings(tmp_path)[0]
    assert found.table["model"].tolist() == [
        *(f"{split}--{name}" for split in ("test", "validation") for name in SHARES),
        *(f"{split}--repaired − {split}--plain" for split in ("test", "validation")),
    ]


def test_drops_without_an_audit_are_not_lost_there():
    columns = ["direction", "reason", "fp_reason", "edit_instruction"]
    dropped = pd.DataFrame(
        [["t2i", "no_op", None, None], ["t2i", "editor_failed", None, "make it red"]], columns=columns
    )
    kept = pd.DataFrame([["t2i", None, None, "make it blue"]], columns=columns)
    data = replace(NOTHING, kept=kept, dropped=dropped)
    assert funnel(data).table.set_index("stage")["t2i"].to_dict() == {"mined": 3, "instructed": 2, "became records": 1}
    audited = funnel(replace(data, kept=kept.assign(fp_reason="a cat"))).table.set_index("stage")
    assert audited.loc["passed the audit", ["t2i", "t2i, of mined"]].tolist() == [1, "33.3%"]


def test_where_failures_are_lost():
    rows = [
        {"reason": "gt_invalid", "fp_reason": "so", "edit_instruction": None},
        {"reason": "llm_unparsed", "fp_reason": None, "edit_instruction": None},
        {"reason": "llm_refused", "fp_reason": "so", "edit_instruction": None},
        {"reason": "no_op", "fp_reason": "so", "edit_instruction": "No change."},
    ]
    assert lost_at(pd.DataFrame(rows)).tolist() == ["audit", "audit", "instruct", "edit"]


def test_error_shares_are_those_of_edited_captions():
    rows = {"direction": ["i2t", "i2t", "t2i"], "error_types": [["Object", "Count"], ["Object"], []]}
    found = error_finding(replace(NOTHING, kept=pd.DataFrame(rows)))
    assert found.data.set_index("error")["i2t"].to_dict() == {
        "Object": 1.0, "Count": 0.5, "Action": 0, "Attribute": 0, "Relation": 0, "Hallucination": 0, DENSITY: 1.5
    }  # fmt: skip
    assert found.rows[1][0] == ["Object", "100.0%"] and "2 edited captions" in found.note
