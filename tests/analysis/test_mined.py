"""Failures are looked at before they are paid for: planted faults are counted, shown and sorted."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from repair_hf.analysis.mined import load_mined, questions
from repair_hf.cli.main import main
from repair_hf.mining.failures import FILE
from repair_hf.runtime.options import UserError


@pytest.fixture(scope="module")
def mined(pairs_folder, clip_folder, tmp_path_factory):
    """A folder of `repair-hf mine`."""
    folder = tmp_path_factory.mktemp("mined") / "failures"
    words = ["mine", "--pairs", str(pairs_folder), "--split", "all", "--model", str(clip_folder)]
    assert main([*words, "--output", str(folder)]) == 0
    return folder


def test_mine_ends_with_the_command_that_shows_what_it_found(pairs_folder, mined, tmp_path, monkeypatch, capsys):
    words = ["mine", "--pairs", str(pairs_folder), "--split", "all", "--model"]
    model = re.search(r"^model: (.+)$", (mined / "config.yaml").read_text(), re.MULTILINE)[1]
    assert main([*words, model, "--output", str(mined)]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["show", str(mined), "--n", "6"]) == 0
    shown = capsys.readouterr().out
    assert "show   6 of " in shown and f"-> {mined / 'sheet.html'}" in shown and not any(tmp_path.iterdir())
    page = (mined / "sheet.html").read_text()
    cards = re.findall(r'<article class="card">(.*?)</article>', page, re.DOTALL)
    margins = [float(re.search(r"<dd><bdi>([+-][\d.]+), false", card)[1]) for card in cards]
    table = load_mined(mined).table
    largest = [table[table["ahead"] & (table["direction"] == way)]["margin"].nlargest(3) for way in ("t2i", "i2t")]
    assert margins == [round(float(margin), 3) for own in largest for margin in own]
    assert len(margins) == 6 and margins == [*sorted(margins[:3])[::-1], *sorted(margins[3:])[::-1]]
    assert page.index("text → image") < page.index("image → text")
    assert all(name in cards[0] for name in ("query", "ground truth", "false positive", "cosine"))
    assert "<script" not in page and "edit" not in cards[0]
    assert all(f"{word}?" in page for word in ("Wrong annotations", "Equal captions", "Copies"))


def test_a_first_look_takes_a_folder_alone_and_has_the_price_of_a_dry_run(
    pairs_folder, clip_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMINI_API_KEY", "not-a-key")
    words = ["mine", str(pairs_folder), "--split", "all", "--model", str(clip_folder)]
    assert main([*words, "--editor", "gemini/gemini-2.5-flash-image"]) == 0
    printed, page = capsys.readouterr().out, Path("runs/look/sheet.html").read_text()
    assert [str(path) for path in Path().iterdir()] == ["runs"] and len([*Path("runs").iterdir()]) == 1
    assert "max_queries: 1000\n" in Path("runs/look/config.yaml").read_text()
    assert all(text in page for text in ("What fails", "Copies?", "What a repair costs")) and page.count("<img") > 6
    dollars = re.search(r"in all +\$([\d.]+)", printed)[1]
    assert float(dollars) > 0 and f"${dollars}" in page
    (synthesize,) = re.findall(r"^next: repair-hf (synthesize .*)$", printed, re.MULTILINE)
    assert "--limit 100 " in synthesize
    assert main([*shlex.split(synthesize), "--dry-run"]) == 0
    assert f"Whole price: ${dollars}:" in capsys.readouterr().out


def test_analyze_counts_what_a_slow_look_counts(mined, tmp_path, capsys):
    assert main(["analyze", str(mined), "--output", str(tmp_path)]) == 0
    assert "Wrong annotations?" in capsys.readouterr().out and (tmp_path / "questions.csv").is_file()
    rows, found = load_mined(mined).table.to_dict("records"), counts(mined)
    for way in ("t2i", "i2t"):
        own = [row for row in rows if row["direction"] == way]
        missed = [row for row in own if row["fp_rank"] < row["gt_rank"]]
        close = sum(abs(row["fp_score"] - row["gt_score"]) < 0.01 for row in missed)
        assert found["Are both right", way] == close and found["Wrong annotations", way] == 0


def test_a_weak_retriever_is_not_a_judge_of_annotations(mined):
    found = load_mined(mined)
    asked = questions(found)
    assert "cannot be judged" not in asked.note and "Wrong annotations" in asked.data["question"][0]
    rank = found.table["gt_rank"].where(found.table["q"] % 4 > 0, 101)
    asked = questions(replace(found, table=found.table.assign(gt_rank=rank)))
    share = (rank <= 100)[~found.table.duplicated(["direction", "q"])].mean()
    assert f"only {share:.0%} of the mined queries within 100" in asked.note
    assert not asked.data["question"].str.contains("Wrong").any()


def counts(folder):
    rows = questions(load_mined(folder)).data.to_dict("records")
    return {(row["question"].split("?")[0], way): row[way] for row in rows for way in ("t2i", "i2t")}


def test_near_identical_images_are_named(clip_folder, pairs_folder, tmp_path):
    """Two files of each picture, which differ in one pixel."""
    import json

    from PIL import Image

    rows = []
    for name in ("red_circle", "blue_circle", "red_square", "blue_square"):
        with Image.open(pairs_folder / f"{name}.png") as image:
            image.save(tmp_path / f"{name}.png")
            image.putpixel((0, 0), (1, 2, 3))
            image.save(tmp_path / f"{name}-again.bmp")
        rows += [{"image": f"{name}{end}", "captions": [f"{name} {end}"]} for end in (".png", "-again.bmp")]
    (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["mine", "--pairs", str(tmp_path), "--split", "all", "--model", str(clip_folder), "--d-t2i", "1"]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    table = load_mined(tmp_path / "out")
    names = [row["image"] for row in rows]
    twins = sum(
        names[row["gt"]].split(".")[0].removesuffix("-again") == names[row["fp"]].split(".")[0].removesuffix("-again")
        for row in table.table.to_dict("records")
        if row["direction"] == "t2i" and row["fp_rank"] < row["gt_rank"]
    )
    assert counts(tmp_path / "out")["Copies", "t2i"] >= twins > 0


def test_what_is_for_records_alone_is_an_error(mined, capsys):
    assert main(["show", str(mined), "--dropped", "no_op"]) == 2
    assert "`dropped` no_op is for records" in capsys.readouterr().err
    assert main(["analyze", str(mined), "--judgements", "ann.json"]) == 2
    assert "`judgements` are of records" in capsys.readouterr().err


def test_other_pairs_are_an_error(mined, tmp_path):
    (tmp_path / FILE).write_bytes((mined / FILE).read_bytes())
    with pytest.raises(UserError, match="does not say which pairs"):
        load_mined(tmp_path)
