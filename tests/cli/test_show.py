"""`repair-hf show` and `annotate`, and texts of strangers on the terminal: shown, and without power over it."""

import json
import re
import shutil

import pandas as pd
import pytest
from datasets import Dataset

from repair_hf.analysis.grids import draw_grids
from repair_hf.analysis.people.judgements import CRITERIA
from repair_hf.analysis.people.sampling import items_of
from repair_hf.analysis.run_data import gather
from repair_hf.cli.main import main
from repair_hf.cli.subcommands import print_table
from repair_hf.records.dataset import DROPPED_FEATURES, FEATURES, save_records
from repair_hf.study.methods import METHODS
from repair_hf.study.options import StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions
from repair_hf.study.products import Products
from repair_hf.study.setting import Setting


def test_a_page_in_the_folder_of_the_records_by_default(illustrated_folder, tmp_path, capsys):
    folder = shutil.copytree(illustrated_folder, tmp_path / "records")
    assert main(["show", str(folder), "--direction", "i2t", "--n", "2"]) == 0
    assert f"show   2 of 12 records   -> {folder / 'sheet.html'}" in capsys.readouterr().out
    page = (folder / "sheet.html").read_text()
    assert page.count('<article class="card">') == 2 and page.count('<img src="data:') == 2


def test_what_was_dropped_with_its_pictures(illustrated_folder, pairs_folder, tmp_path, capsys):
    page = tmp_path / "dropped.html"
    words = ["show", str(illustrated_folder), "--dropped", "gt_invalid", "--output", str(page)]
    assert main(words) == 0
    assert "--pairs shows them" in capsys.readouterr().out and "<img" not in page.read_text()
    assert main([*words, "--pairs", str(pairs_folder)]) == 0
    shown = capsys.readouterr().out
    assert "show   1 of 1 failures dropped as gt_invalid" in shown and "--pairs shows them" not in shown
    assert page.read_text().count('<img src="data:') == 2


def test_the_training_grid_of_an_anchor(illustrated, illustrated_folder, pairs_folder, tmp_path, capsys):
    """An anchor's hard negatives are what its records confuse it with; edits and annotations that fit them match."""
    pairs, records = illustrated
    confused = {(row["q_id"], row["fp_id"]) for row in records.to_list()}
    page = tmp_path / "grids.html"
    words = ["show", str(illustrated_folder), "--pairs", str(pairs_folder), "--output", str(page), "--anchor"]
    assert main([*words, "any", "--n", "2"]) == 0
    assert "show   2 grids; " in capsys.readouterr().out and page.read_text().count('<table class="grid">') == 2
    sample = draw_grids(records, pairs, n=99, anchor="any")
    assert len(sample.grids) == sample.available > 2
    for grid in sample.grids:
        image, caption = grid.images[0].origin, grid.captions[0].origin
        assert {(image, grid.captions[1].origin), (grid.captions[1].origin, image)} & confused
        assert {(caption, grid.images[2].origin), (grid.images[2].origin, caption)} & confused
        assert [grid.cells[place][place] for place in range(3)] == ["match"] * 3
    image, caption = sample.grids[-1].images[0].origin, sample.grids[-1].captions[0].origin
    assert draw_grids(records, pairs, n=1, anchor=caption).grids[0].images[0].origin == image
    assert {"edit"} < {item.origin for grid in sample.grids for item in (*grid.images, *grid.captions)}
    assert main([*words, "nobody"]) == 2
    assert "`anchor` nobody: no caption has this id" in capsys.readouterr().err


@pytest.mark.slow
def test_people_judge_the_records_of_a_study(inputs, tmp_path, capsys):
    options = StudyOptions(output=str(tmp_path), max_queries=2), StudyPairsOptions(pairs=inputs[1])
    models = StudyLLMOptions(llm="world/oracle?rejects_good=0.6"), StudyEditorOptions()
    setting = Setting(*options, *models)
    Products(setting).of(METHODS["repair-i2t"])
    folder = setting.folder / "repair-i2t"
    material, files = gather(folder), []
    kept, failures = len(material.kept), len(material.dropped)
    assert kept and failures
    edits = dict.fromkeys(CRITERIA, True) | {"mode": None}
    capsys.readouterr()
    for task, count, answer in (("qc", kept + failures, {"verdict": "genuine"}), ("edits", kept, edits)):
        assert main(["annotate", task, str(folder)]) == 0
        printed = capsys.readouterr().out
        assert f"annotate {task}   {count} items, " in printed and str(folder / f"judge-{task}.html") in printed
        answers = dict.fromkeys(items_of(material, task)["item"], answer)
        files.append(tmp_path / f"{task}.json")
        files[-1].write_text(json.dumps({"task": task, "annotator": "ann", "answers": answers}))
    words = ["analyze", str(folder), "--output", str(tmp_path / "agreed"), "--judgements", *map(str, files)]
    assert main(words) == 0
    found = {task: pd.read_csv(tmp_path / "agreed" / f"agreement_{task}.csv").iloc[0] for task in ("qc", "edits")}
    assert found["qc"][["accepted, genuine", "rejected, genuine"]].tolist() == [kept, failures]
    assert found["edits"][["criterion", "items", "met"]].tolist() == ["fp_wrong", kept, kept]


def test_nothing_is_written_through_a_link_in_a_folder_of_somebody_else(illustrated_folder, tmp_path, capsys):
    strange, mine = shutil.copytree(illustrated_folder, tmp_path / "strange"), tmp_path / "mine"
    mine.mkdir()
    (mine / "letter.html").write_text("mine")
    for name in ("sheet.html", "judge-edits.html"):
        (strange / name).symlink_to(mine / "letter.html")
    (strange / "report").symlink_to(mine)
    for words in (["show"], ["annotate", "edits"], ["analyze"]):
        assert main([*words, str(strange)]) == 2
        assert "give" in capsys.readouterr().err
    assert [path.read_text() for path in mine.iterdir()] == ["mine"]


EVIL = "\x1b]0;owned\x07\x1b[2J \u202egpj.exe \u2028 \x9b31m [/bold] :dog: [red]"
COMMANDS = {
    "show": "show {run} --output {out}/sheet.html",
    "show-unknown": "show {run} --error-type {evil}x",
    "analyze": "analyze {run} --output {out}/report",
    "push": "push records {run} --repo me/x --dry-run",
}


@pytest.fixture(scope="module")
def run(illustrated, tmp_path_factory):
    """A folder of records all of whose texts try to command a terminal."""
    texts = [name for name, kind in FEATURES.items() if getattr(kind, "dtype", "") == "string" and name != "direction"]
    rows = [row | dict.fromkeys(texts, EVIL) | {"error_types": [EVIL]} for row in illustrated[1]]
    rows = [row | {f"edit_{'image' if row['direction'] == 'i2t' else 'text'}": None} for row in rows]
    reason = {"reason": "no_op", "detail": EVIL, "direction": "i2t", "q_id": EVIL}
    dropped = Dataset.from_list([dict.fromkeys(DROPPED_FEATURES) | reason], features=DROPPED_FEATURES)
    folder = tmp_path_factory.mktemp("evil")
    save_records(folder, Dataset.from_list(rows, features=FEATURES), dropped)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_sends_an_escape_code(command, run, tmp_path, capfd):
    words = [word.format(run=run, out=tmp_path, evil=EVIL) for word in COMMANDS[command].split()]
    assert main(words) == (2 if "unknown" in command else 0)
    shown = "".join(capfd.readouterr())
    assert shown and not re.findall(r"[^\x20-\x7e\n–−→…×·]", shown)
    if command == "show-unknown":
        assert r"\x1b[2J \u202egpj.exe" in shown and r"[/bold] :dog: [red]" in shown


def test_a_table_shows_markup_as_it_is(capsys):
    print_table(["model [/bold]"], [["[red]x[/red] :dog:"]])
    assert "[/bold]" in capsys.readouterr().out.replace("\n", " ")
