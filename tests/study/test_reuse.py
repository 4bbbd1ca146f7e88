"""A recipe and a study pay for nothing twice: each takes over what the other has paid for. A server counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from provider_server import KEY
from small_world import saved

from repair_hf.cli.main import main
from repair_hf.cli.subcommands import run_command
from repair_hf.evaluation.compositional import CompositionalOptions
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.options import StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions
from repair_hf.study.products import Products
from repair_hf.study.setting import Knobs, settle
from repair_hf.toyworld import oracle
from repair_hf.toyworld.server import ChatServer


def asked(log: Path) -> list[str]:
    return [json.loads(line)["digest"] for line in log.read_text().splitlines()]


@pytest.mark.slow  # a study's records, thrice
def test_a_recipe_and_a_study_share_what_is_paid_for(clip_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    world, log = tmp_path / "world", tmp_path / "log.jsonl"
    assert main(["world", "build", "--output", str(world), "--train", "12", "--validation", "2", "--test", "2"]) == 0
    pairs = ["--pairs", str(world), "--model", str(clip_folder)]
    with ChatServer(lambda body: oracle.answer(body["messages"], body["seed"]), log=log) as server:
        llm = {"llm": "openai/world", "llm_base_url": server.base_url}
        assert main(["mine", *pairs, "--output", str(tmp_path / "failures")]) == 0
        words = ["synthesize", *pairs, "--failures", str(tmp_path / "failures"), "--editor", "world"]
        words += ["--llm", llm["llm"], "--llm-base-url", llm["llm_base_url"], "--output"]
        recipe, again = tmp_path / "records", tmp_path / "again"
        assert main([*words, str(recipe)]) == 0
        by_recipe = asked(log)

        options = StudyOptions(output=str(tmp_path / "study"), model=str(clip_folder), records=[str(recipe)])
        setting = settle(
            options, StudyPairsOptions(pairs=str(world)), StudyLLMOptions(**llm), StudyEditorOptions(),
            CompositionalOptions(), run_command,
        )  # fmt: skip
        products, knobs = Products(setting), Knobs(1e-4, 1.0, 1.0)
        given = products.of(load_methods()["repair"], knobs)["records"].data
        assert asked(log) == by_recipe and len(given) == len(saved(recipe)[0])
        products.of(load_methods()["wo-qc"], knobs)  # asks about failures that the audit had turned down, too
        by_study = asked(log)[len(by_recipe) :]
        assert by_study and not set(by_study) & set(by_recipe)

        made = tmp_path / "study" / "products" / "wo-qc-records"
        assert json.loads((made / "summary.json").read_text())["images"]["found"] > 0
        capsys.readouterr()
        assert main([*words, str(again), "--answers-from", str(recipe), str(made)]) == 0
        assert asked(log) == by_recipe + by_study and saved(again) == saved(recipe)
        assert "reuses the answers and images of" in (shown := capsys.readouterr().out) and "images: 0 new" in shown
        assert len(set(asked(log))) == len(asked(log))
    assert main([*words, str(tmp_path / "third"), "--answers-from", str(world)]) == 2
    assert "holds no paid answers" in capsys.readouterr().err
