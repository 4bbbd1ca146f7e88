"""`repair-hf annotate`: what it draws, refuses and sends. The page itself is tested in a browser."""

import json
import socket

import pandas as pd

from repair_hf.cli.annotate import own_names
from repair_hf.cli.main import main
from repair_hf.records.answers import CRITERIA, read_items
from repair_hf.records.dataset import load_dropped, load_records
from repair_hf.study.methods import METHODS
from repair_hf.study.options import StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions
from repair_hf.study.products import Products
from repair_hf.study.setting import Setting


def test_a_page_answers_to_names_of_its_machine_alone():
    assert {"10.0.0.5", "localhost"} <= set(own_names("10.0.0.5")) and socket.gethostname() not in own_names(
        "10.0.0.5"
    )
    assert {socket.gethostname(), "127.0.0.1"} <= set(own_names("0.0.0.0"))


def test_people_judge_the_records_of_a_study(inputs, tmp_path, capsys):
    options = StudyOptions(output=str(tmp_path), max_queries=2), StudyPairsOptions(pairs=inputs[1])
    models = StudyLLMOptions(llm="world/oracle?rejects_good=0.6"), StudyEditorOptions()
    setting = Setting(*options, *models)
    Products(setting).of(METHODS["repair-i2t"])
    folder = setting.folder / "repair-i2t"
    kept, failures = len(load_records(str(folder))), len(load_dropped(str(folder)))
    capsys.readouterr()
    edits = dict.fromkeys(CRITERIA, True) | {"mode": None}
    for task, count, said in (("qc", kept + failures, {"verdict": "genuine"}), ("edits", kept, edits)):
        here = folder / "people" / task
        assert main(["annotate", task, str(folder), "--dry-run"]) == 0
        assert f"annotate {task}   {count} items   -> {here}\n" in capsys.readouterr().out
        lines = [{"annotator": "ann", "item": item} | said for item in read_items(here)["item"]]
        (here / "answers").mkdir()
        (here / "answers" / "ann.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["analyze", str(folder), "--output", str(tmp_path / "agreed")]) == 0
    found = {task: pd.read_csv(tmp_path / "agreed" / f"agreement_{task}.csv").iloc[0] for task in ("qc", "edits")}
    assert found["qc"][["accepted, genuine", "rejected, genuine"]].tolist() == [kept, failures] and kept and failures
    assert found["edits"][["criterion", "items", "met"]].tolist() == ["fp_wrong", kept, kept]
