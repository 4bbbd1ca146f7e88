"""The trial of recipes/trial, end to end on a few pictures: every method, with a scripted LLM and tiny editors."""

from pathlib import Path

import pandas as pd
import pytest
import yaml
from chat_server import ChatServer
from provider_server import KEY
from study_runs import stamps, study

from repair_hf.cli.main import main
from repair_hf.study.methods import METHODS
from repair_hf.toyworld import oracle
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.parsing import build_parser

RECIPE = Path(__file__).parents[1] / "recipes" / "trial" / "study.yaml"


@pytest.mark.slow  # a training of each method
def test_the_trial_runs_end_to_end(clip_folder, flux_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (build_world(tmp_path / "photos", splits={"train": 12, "val": 4, "test": 6}) / "versions.json").unlink()
    build_parser().to_disk("parser")
    recipe = yaml.safe_load(RECIPE.read_text())
    for name in ("image_folder", "benchmark", "reasoning_effort", "training"):
        del recipe[name]
    recipe |= {"llm": "openai/gpt-4o", "editor": str(flux_folder), "editor_steps": 1, "editor_size": 64}
    recipe |= {"model": str(clip_folder), "spacy_model": "parser", "pairs": "photos"}
    recipe |= {"max_images": 8, "max_queries": 4, "epochs": [1], "batch_size": 4}
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ChatServer(lambda body: oracle.answer(body["messages"], body["seed"])) as server:
        Path("trial.yaml").write_text(yaml.safe_dump(recipe | {"llm_base_url": server.base_url}))
        assert "8 images, 8 captions" in study("--config", "trial.yaml", "--dry-run")
        study("--config", "trial.yaml")

    folder = Path(recipe["output"])
    costs = pd.read_csv(folder / "methods.csv").set_index("method")
    assert set(costs.index) == set(METHODS) - {"new-pairs"}
    assert (costs.loc[["repair-paper", "alia"], ["samples", "llm calls", "images"]] != "0").all(axis=None)

    failures, records = folder / "pairs" / "failures-best", folder / "pairs" / "repair"  # as the README names them
    for words in (["annotate", "qc", str(records)], ["annotate", "edits", str(records)]):
        assert main(words) == 0, capsys.readouterr().err
    assert main(["analyze", str(records)]) == main(["show", str(failures)]) == main(["show", str(records)]) == 0
    before = stamps(folder)
    study("--config", "trial.yaml")
    assert stamps(folder) == before
