from __future__ import annotations

import io

import pytest
from PIL import Image

from repair_hf.cli import main as cli
from repair_hf.records.dataset import DROPPED_FEATURES, FEATURES, build, save_records


@pytest.fixture
def records_folder(tmp_path):
    file = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(file, "PNG")
    picture = {"bytes": file.getvalue(), "path": None}
    shared = dict(
        round=1, q_id="q", gt_id="gt", fp_id="fp", fp_score=0.6, fp_rank=1, gt_score=0.5, gt_rank=2,
        edit_similarity=0.9, edit_instruction="Replace 'red' with 'blue'.", error_types=[], retriever="clip",
        llm="oracle", editor="world",
    )  # fmt: skip
    i2t = dict(direction="i2t", q_image=picture, gt_text="a", fp_text="b", edit_text="a")
    t2i = dict(direction="t2i", q_text="a", gt_image=picture, fp_image=picture, edit_image=picture)
    rows = [shared | row | {"record_id": f"r{k}"} for k, row in enumerate([i2t, t2i, i2t])]
    records = build(rows, tmp_path / "records.arrow", FEATURES)
    failure = dict(direction="t2i", q_text="a", gt_id="red_circle.png", fp_id="red_square.png", reason="gt_invalid")
    failure |= {name: cell for name, cell in shared.items() if name in DROPPED_FEATURES and name not in failure}
    dropped = build([failure], tmp_path / "dropped.arrow", DROPPED_FEATURES)
    save_records(tmp_path / "records", records, dropped)
    return tmp_path / "records"


def test_show_draws_what_it_is_given(records_folder, tmp_path, capsys):
    picture = tmp_path / "new" / "sheet.png"
    assert cli.main(["show", str(records_folder), "--n", "2", "--output", str(picture)]) == 0
    assert Image.open(picture).width > 1000
    shown = capsys.readouterr().out
    assert f"show   2 of 3 records   -> {picture}" in shown
    assert "next: repair-hf train" in shown


def test_a_page_by_default(records_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["show", str(records_folder), "--direction", "i2t"]) == 0
    assert "show   2 of 2 records   -> sheet.html" in capsys.readouterr().out
    page = (tmp_path / "sheet.html").read_text()
    assert page.count('<article class="card">') == 2 and page.count('<img src="data:') == 2


def test_what_was_dropped_with_its_pictures(records_folder, pairs_folder, tmp_path, capsys):
    page = tmp_path / "dropped.html"
    words = ["show", str(records_folder), "--dropped", "gt_invalid", "--output", str(page)]
    assert cli.main(words) == 0
    assert "--pairs shows them" in capsys.readouterr().out and "<img" not in page.read_text()
    assert cli.main([*words, "--pairs", str(pairs_folder), "--split", "all"]) == 0
    shown = capsys.readouterr().out
    assert "show   1 of 1 failures dropped as gt_invalid" in shown and "--pairs shows them" not in shown
    assert page.read_text().count('<img src="data:') == 2


@pytest.mark.parametrize(
    "argv, line",
    [
        (["absent-folder"], "repair-hf show: error: absent-folder holds no records"),
        (
            ["absent-folder", "--output", "sheet.jpg"],
            "repair-hf show: error: `output` must be an .html or .png file, got 'sheet.jpg'.",
        ),
        ([], "repair-hf show: error: the following arguments are required: --records"),
    ],
)
def test_a_mistake_is_one_line(argv, line, capsys):
    assert cli.main(["show", *argv]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(line) and shown.count("\n") == 1
