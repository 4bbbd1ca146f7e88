"""The trial of recipes/trial, end to end on a few pictures: every method, with a scripted LLM and tiny editors."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from provider_server import KEY
from study_runs import study

from repair_hf.cli.main import main
from repair_hf.study.methods.method import TOY
from repair_hf.study.methods.registry import load_methods
from repair_hf.toyworld import oracle
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.parsing import build_parser
from repair_hf.toyworld.server import ChatServer

RECIPE = Path(__file__).parents[1] / "recipes" / "trial" / "study.yaml"


@pytest.mark.slow  # forty trainings
def test_the_trial_runs_end_to_end(clip_folder, flux_folder, pix2pix_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (build_world(tmp_path / "pairs", splits={"train": 12, "val": 4, "test": 6}) / "world.json").unlink()
    build_parser().to_disk("parser")
    recipe = yaml.safe_load(RECIPE.read_text())
    for name in ("image_folder", "benchmark", "reasoning_effort", "training"):
        del recipe[name]
    other, pix2pix = recipe["swaps"].values()
    other["llm"], pix2pix["editor"], pix2pix["editor_steps"] = "openai/gpt-4o-mini", str(pix2pix_folder), 1
    recipe |= {"llm": "openai/gpt-4o", "editor": str(flux_folder), "editor_steps": 1, "editor_size": 64}
    recipe |= {"model": str(clip_folder), "other_model": str(clip_folder), "spacy_model": "parser", "pairs": "pairs"}
    recipe |= {"max_images": 8, "max_queries": 4, "epochs": [1], "batch_size": 4, "resamples": 20}
    recipe["learning_rates"] = [1e-2]  # far enough that the second round has failures of its own
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ChatServer(lambda body: oracle.answer(body["messages"], body["seed"])) as server:
        Path("trial.yaml").write_text(yaml.safe_dump(recipe | {"llm_base_url": server.base_url}))
        assert "8 images, 8 captions" in study("--config", "trial.yaml", "--dry-run")
        study("--config", "trial.yaml")

    folder, products = Path(recipe["output"]), Path(recipe["output"]) / "products"
    methods = load_methods(recipe["swaps"])
    left = [name for name, method in methods.items() if TOY in method.means]
    assert set(pd.read_csv(folder / "overhead.csv")["method"]) | set(left) == set(methods)
    page = (folder / "study.md").read_text()
    for title in ("What the whole data would take", "What to look at first"):
        assert f"## {title}" in page
    data = pd.read_csv(folder / "whole.csv").set_index(["product", "where"])
    for product, times in (("repair-t2i-records", 60 / 4), ("alia", 60 / 8)):  # captions, or the four that are mined
        here, whole = data.loc[(product, "here")], data.loc[(product, "whole")]
        assert whole["images"] == times * here["images"] > 0
        for name in ("hours", "llm_calls", "dollars", "prompt_tokens", "gigabytes"):
            assert 0 < here[name] < whole[name], name
    first = pd.read_csv(folder / "look_first.csv")
    assert {"T2I failure", "I2T failure", "I2T edit"} <= set(first["what"])
    assert set(first["query"]) <= set(pd.read_parquet(products / "repair-failures" / "failures.parquet")["q_id"])

    records = str(products / "repair-records")
    for words in (["annotate", "qc", records, "--dry-run"], ["annotate", "edits", records, "--dry-run"]):
        assert main(words) == 0, capsys.readouterr().err
    assert main(["analyze", records]) == 0 and main(["show", records]) == 0
    before = json.loads((products / "repair-records" / "summary.json").read_text())
    study("--config", "trial.yaml")
    assert json.loads((products / "repair-records" / "summary.json").read_text()) == before
