"""`repair-hf annotate` and `analyze --judgements` from records. The page itself is tested in a browser."""

import json
import shutil

import pandas as pd

from repair_hf.analysis.people.judgements import CRITERIA
from repair_hf.analysis.people.sampling import items_of
from repair_hf.analysis.run_data import gather
from repair_hf.cli.main import main
from repair_hf.study.methods import METHODS
from repair_hf.study.options import StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions
from repair_hf.study.products import Products
from repair_hf.study.setting import Setting


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
