"""The forest plot and the curve of blends: each place is that of its number."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from made_evaluations import SHARES, evaluated

from repair_hf.analysis.blend_curve import LETTER, TALL, curve
from repair_hf.analysis.evaluations import Evaluations, find_evaluations
from repair_hf.analysis.forest import forest
from repair_hf.analysis.repair_findings import blend_finding, repair_findings
from repair_hf.analysis.report import write_report
from repair_hf.analysis.tables import difference_cell


def test_the_plot_shows_the_numbers_of_the_table_and_tells_them_in_words(tmp_path):
    """In the page itself: each interval is drawn at its numbers, beside a line at 0."""
    evaluated(tmp_path, SHARES, ("repaired", "plain", -0.021, 0.163))
    helped = repair_findings(tmp_path, find_evaluations(tmp_path))[0]
    rise = {"low": 0.01, "difference": 0.02, "high": 0.03}
    other = helped.data.assign(name="a-measure-with-a-name-of-many-letters-<b>", metric="contrast_caption", **rise)
    data = pd.concat([helped.data, other, other.assign(metric="web_t2i_R@1", low=-0.2, difference=-0.15, high=-0.1)])
    helped = replace(helped, data=data, plot=forest("repaired − plain", data))
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
        assert texts[1] == numbers and f"{row['name']}: {numbers}" in root.find("desc").text
        assert row["name"] in texts[0]
        line, dot = mark.find("line"), mark.find("circle")
        for name, x in (("low", line.get("x1")), ("high", line.get("x2")), ("difference", dot.get("cx"))):
            points = low + (float(x) - x_low) / (x_high - x_low) * (high - low)
            assert points == pytest.approx(100 * row[name], abs=0.02)
    assert [mark.get("class") for mark in marks] == ["open", "rise", "fall"]
    assert root.get("role") == "img" and root.get("aria-labelledby").split() == [
        root.find("title").get("id"),
        root.find("desc").get("id"),
    ]


def test_a_plot_of_no_difference_has_0_in_the_middle():
    row = {"name": "R@1", "metric": "mean_R@1", "difference": 0.0, "low": 0.0, "high": 0.0}
    plot = forest("repaired − plain", pd.DataFrame([row]))
    assert plot.zero == plot.width / 2 and [text for text, _ in plot.ticks] == ["-0.1", "0", "0.1"]


def test_the_curve_of_blends_shows_the_numbers_of_its_table_and_names_them_in_words(tmp_path):
    """In the page itself: each point is drawn at its numbers, by the scales beside it. Lines begin at the base."""
    shares = {"base": (0.435, 0.384, 0.816, 0.752), "plain@0.8": (0.59, 0.55, 0.76, 0.70)}
    shares |= {"tuned@1": (0.652, 0.578, 0.677, 0.643), "tuned@0.6": (0.61, 0.5632, 0.751, 0.702)}
    evaluated(tmp_path / "blends", dict.fromkeys(shares, 0.5))
    names = ("i2t_R@1", "t2i_R@1", "web_i2t_R@1", "web_t2i_R@1")
    metrics = {name: dict(zip(names, each, strict=True)) | {"intervals": {}} for name, each in shares.items()}
    (tmp_path / "blends" / "metrics.json").write_text(json.dumps(metrics))
    for name in shares:
        weight = f"weight: {name.partition('@')[2]}\n" if "@" in name else ""
        (tmp_path / "blends" / name / "config.yaml").write_text(f"model: m\n{weight}")
    kept = blend_finding(find_evaluations(tmp_path))
    write_report(tmp_path, "title", "counts", [kept], [])
    page = (tmp_path / "report.html").read_text()
    (drawn,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    root, saved = ET.fromstring(drawn), pd.read_csv(tmp_path / "blends.csv")
    assert "<details><summary>5 rows</summary>" in page  # the curve stands in their place

    def value(name: str, axis: str, place: str) -> float:
        """Read a place of the drawing by its scale."""
        ticks = [each for each in root.iter("text") if name in each.get("class", "").split()]
        (low, first), *_, (high, last) = sorted((float(tick.text), float(tick.get(axis))) for tick in ticks)
        shift = 4 if axis == "y" else 0  # of a letter's baseline
        return low + (float(place) - first + shift) / (last - first) * (high - low)

    drawn_points = {}
    for line in (each for each in root.iter("g") if each.get("class")):
        for dot, text in zip(line.iter("circle"), line.iter("text"), strict=True):
            point = value("across", "x", dot.get("cx")), value("up", "y", dot.get("cy"))
            drawn_points[line.get("class"), text.text.split()[0]] = point
    starts = {line.get("points").split()[0] for line in root.iter("polyline")}
    base = next(each for each in root.iter("g") if each.get("class") == "start").find("circle")
    assert starts == {f"{base.get('cx')},{base.get('cy')}"}
    expected = {
        ("start", "base"): (40.95, 78.4),
        ("first", "0.8"): (57.0, 73.0),
        ("second", "0.6"): (58.66, 72.65),
        ("second", "1"): (61.5, 66.0),
    }
    assert drawn_points.keys() == expected.keys()
    for key, point in expected.items():
        assert drawn_points[key] == pytest.approx(point, abs=0.05)
    assert saved["method"].tolist() == ["plain"] * 2 + ["tuned"] * 3
    assert saved[["gained", "kept"]].to_numpy() == pytest.approx(np.array([*expected.values()])[[0, 1, 0, 2, 3]])
    for row, shown in zip(saved.itertuples(), kept.rows[1], strict=True):
        words = f"{row.method}, blend {row.blend:g}: {row.gained:.1f} and on web {row.kept:.1f}"
        assert words in root.find("desc").text
        assert shown == ["web", row.method, f"{row.blend:g}", f"{row.gained:.1f}", f"{row.kept:.1f}"]
    assert root.get("role") == "img" and root.get("aria-labelledby") == "blends-title blends-text"


def test_without_blends_on_further_pairs_there_is_no_curve(tmp_path):
    assert blend_finding(Evaluations()) is None
    evaluated(tmp_path, SHARES, ("repaired", "plain", 0.1, 0.2))
    assert blend_finding(find_evaluations(tmp_path)) is None


@pytest.mark.parametrize("methods", [["tuned"], ["plain", "tuned"]])
def test_labels_of_a_curve_do_not_overlap(methods):
    """Two lines that lie upon each other."""
    rows = [("web", method, weight / 5, 60 + weight, 70.0 - weight) for method in methods for weight in range(6)]
    plot = curve(pd.DataFrame(rows, columns=["also", "method", "blend", "gained", "kept"]))
    (panel,) = plot.panels
    assert [line.points[-1].label for line in panel.lines] == [f"1 {method}" for method in methods]
    boxes = []
    for point in (panel.base, *(point for line in panel.lines for point in line.points)):
        left = point.label_x - (LETTER * len(point.label) if point.anchor == "end" else 0)
        boxes.append((left, point.label_y - TALL, left + LETTER * len(point.label), point.label_y))
    for place, one in enumerate(boxes):
        assert one[0] >= 0 and one[2] <= plot.width
        for other in boxes[:place]:
            assert min(one[2], other[2]) <= max(one[0], other[0]) or min(one[3], other[3]) <= max(one[1], other[1])
