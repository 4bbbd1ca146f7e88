"""What the command line can do, Python can: the same folders, resume, locks and errors, by public functions."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from repair_hf import (
    RepairConfig,
    analyze,
    evaluate,
    export_near_misses,
    export_open_clip,
    export_triplets,
    load_pairs,
    load_records,
    mine,
    show,
    synthesize,
    train,
)
from repair_hf.cli.main import COMMANDS, main
from repair_hf.cli.subcommands import load_command
from repair_hf.runtime.locks import one_writer
from repair_hf.runtime.options import UserError, is_neutral
from repair_hf.toyworld.corpus import build_world

BASE = "world/base"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return build_world(tmp_path_factory.mktemp("python") / "world", splits={"train": 8, "validation": 2, "test": 4})


def stamps(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_mine_writes_the_folder_of_its_command_and_reads_it_again(world, tmp_path, monkeypatch):
    pairs = load_pairs(world)
    failures = mine(BASE, pairs, output=tmp_path / "a", d_i2t=2)
    assert main(["mine", "--pairs", str(world), "--model", BASE, "--d-i2t", "2", "--output", str(tmp_path / "b")]) == 0
    files = [{path.relative_to(place).name for path in stamps(place)} for place in (tmp_path / "a", tmp_path / "b")]
    assert files[0] == files[1] and "items.parquet" in files[0]
    configs = [yaml.safe_load((tmp_path / name / "config.yaml").read_text()) for name in "ab"]
    assert configs[0] == configs[1] and configs[0]["pairs"] == str(world)
    before = stamps(tmp_path)
    assert mine(BASE, pairs, output=tmp_path / "a", d_i2t=2).to_list() == failures.to_list()
    assert stamps(tmp_path) == before
    with pytest.raises(UserError, match="finished result with other options: d_i2t"):
        mine(BASE, pairs, output=tmp_path / "a", d_i2t=1)
    with one_writer(tmp_path / "c"), pytest.raises(UserError, match="in use by another run"):
        mine(BASE, pairs, output=tmp_path / "c")
    monkeypatch.chdir(tmp_path)
    assert mine(BASE, pairs, d_i2t=2).to_list() == failures.to_list() and stamps(tmp_path) == before


def test_from_failures_to_a_report(world, tmp_path):
    pairs, test = load_pairs(world), load_pairs(world, split="test")
    mine(BASE, pairs, output=tmp_path / "failures", d_i2t=2)
    made = {"llm": "world/oracle", "editor": "world", "candidates": 1}
    records = synthesize(tmp_path / "failures", pairs, BASE, output=tmp_path / "records", **made)
    few = {"output": tmp_path / "few", "answers_from": [str(tmp_path / "records")], "limit": 1}
    assert len(synthesize(tmp_path / "failures", pairs, BASE, **few, **made)) <= 2
    assert all(use["calls"] == 0 for use in json.loads((tmp_path / "few" / "summary.json").read_text())["llm"])
    config = RepairConfig(max_steps=2, per_device_train_batch_size=4, use_cpu=True)
    summary = train(BASE, pairs, tmp_path / "records", config, output=tmp_path / "tuned")
    assert summary["steps"] == 2 and summary["fill"]["edits_t2i"] > 0
    before = stamps(tmp_path / "tuned")
    assert train(BASE, pairs, tmp_path / "records", config, output=tmp_path / "tuned") == summary
    assert stamps(tmp_path / "tuned") == before
    metrics = evaluate([BASE, tmp_path / "tuned"], test, output=tmp_path / "compare", resamples=9)
    assert metrics == json.loads((tmp_path / "compare" / "metrics.json").read_text())
    assert list(metrics) == ["base", "tuned"] and (tmp_path / "compare" / "differences.json").is_file()
    alone = evaluate(BASE, test, resamples=9)["base"]
    assert alone["t2i_R@1"] == metrics["base"]["t2i_R@1"] and alone["intervals"] == metrics["base"]["intervals"]
    sample = show(tmp_path / "records", tmp_path / "sheet.html", n=4)
    assert len(sample.rows) == 4 and (tmp_path / "sheet.html").is_file()
    findings = analyze(tmp_path / "records", tmp_path / "report")
    assert (tmp_path / "report" / "report.html").is_file() and {"funnel", "costs"} <= {each.name for each in findings}
    assert export_open_clip(BASE, tmp_path / "clip")["parameters"] > 0
    assert sum(export_triplets(tmp_path / "records", pairs, tmp_path / "triplets").values()) > 0
    assert sum(export_near_misses(tmp_path / "records", pairs, tmp_path / "test").values()) > 0
    assert len(load_records(tmp_path / "records")) == len(records)


def test_a_misspelt_option_is_named_with_the_right_one(world):
    for call in (mine, evaluate):
        with pytest.raises(UserError, match=r"has no option \['batch_sise'\]. Did you mean `batch_size`"):
            call(BASE, load_pairs(world), batch_sise=3)


def declared() -> list:
    modules = [load_command(name) for name in COMMANDS]
    groups = [getattr(module, "OPTIONS", ()) for module in modules]
    groups += [types for module in modules for types, _ in vars(module).get("ACTIONS", {}).values()]
    return [each for kind in {kind for types in groups for kind in types} for each in fields(kind)]


def test_options_that_do_not_affect_the_result_say_so_where_they_are_declared():
    neutral = {each.name for each in declared() if is_neutral(each)}
    assert {"output", "concurrency", "max_usd", "report_to", "chunk_size"} <= neutral
    assert not {"seed", "k_mine", "learning_rate", "candidates", "llm", "model", "split"} & neutral
