"""`repair-hf study`: finished work stays and is not paid again after a kill, by a second process, below a ceiling."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from ledgers import ledger_in, rows
from study_runs import stamps, study

from repair_hf.cli.main import main
from repair_hf.llm.ledger_file import paid_by
from repair_hf.toyworld import oracle
from repair_hf.toyworld.server import ChatServer


def test_samples_stay_when_an_option_changes_that_has_no_part_in_them(tmp_path):
    words = ["--size", "tiny", "--seeds", "1", "--methods", "laclip", "--output", str(tmp_path)]
    study(*words)
    before = stamps(tmp_path)
    study(*words, "--editor", "world?smear=0.5")  # the editor's, which rewrites no captions
    assert stamps(tmp_path) == before


@pytest.mark.slow
def test_a_launcher_starts_processes_that_share_the_work(tmp_path):
    """The first prints for all, and each training is made once."""
    words = f"study --size tiny --seeds 2 --output {tmp_path} --methods repair --cells {tmp_path / 'kept'}".split()
    config = Path(__file__).parents[2] / "recipes" / "accelerate" / "cpu-2.yaml"
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config), "-m", "repair_hf"]
    shown = subprocess.run([*launch, *words], check=True, capture_output=True, text=True, timeout=1800).stdout
    assert shown.count("after 2 of 2 seeds") == 1 and shown.count("The regime") == 1
    alone = study(*words[1:])
    assert alone.partition("The regime")[2] == shown.partition("The regime")[2]
    logs = [json.loads(file.read_text()) for file in tmp_path.glob("cells/*/summary.json")]
    assert len(logs) == len(list(tmp_path.glob("kept/*.json"))) > 4


def test_two_processes_share_a_folder_and_pay_nothing_twice(tmp_path):
    """The same command twice. Both methods ask the same questions: the second to be made reuses the answers."""
    words = f"study --size tiny --seeds 1 --output {tmp_path} --methods wo-pqc repair-both-losses".split()
    command = [sys.executable, "-m", "repair_hf", *words]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)
    ]
    shown = [process.communicate(timeout=1800)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], shown
    with ledger_in(tmp_path) as ledger:
        assert (
            ledger.total[1] > 100 and not ledger.database.execute("SELECT 1 FROM call WHERE state = 'lost'").fetchone()
        )
    assert len(list(tmp_path.glob("products/*-records/summary.json"))) == 2
    tables = [text.partition("The regime")[2] for text in shown]
    assert tables[0] == tables[1] != ""
    before = stamps(tmp_path)
    study(*words[1:])
    assert stamps(tmp_path) == before
    assert {"wo-pqc", "repair-both-losses"} < set(pd.read_csv(tmp_path / "scores.csv")["method"])


@pytest.mark.slow
def test_a_killed_study_goes_on_and_loses_one_cell_at_most(tmp_path):
    """Killed in its second training: what was whole stays as it was, and no answer is paid again."""
    out = tmp_path / "out"
    words = ["study", "--size", "tiny", "--seeds", "1", "--methods", "sugarcrepe", "repair", "--output", str(out)]
    command = [sys.executable, "-m", "repair_hf", *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ) as process:
        while len(list((out / "cells").glob("*--seed0/config.yaml"))) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    whole = [path.parent for path in out.rglob("summary.json")]
    assert len(whole) >= 3 and not (out / "study.md").exists()
    before = {path: when for path, when in stamps(out).items() if path.parent in whole}
    paid = rows(out / "products" / "sugarcrepe")
    study(*words[1:])
    after = stamps(out)
    assert {path: after[path] for path in before} == before
    assert rows(out / "products" / "sugarcrepe") == paid


@pytest.mark.slow
def test_the_ceiling_holds_for_all_methods_together_and_a_higher_one_goes_on(tmp_path, monkeypatch, capsys):
    """Two methods of 160 captions each, at the list price of a model that the oracle stands for."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    out, log = tmp_path / "out", tmp_path / "requests.jsonl"
    words = f"study --size tiny --seeds 1 --methods laclip sugarcrepe --output {out} --llm openai/gpt-4o-mini".split()
    with ChatServer(oracle.answer_to, log=log) as server:
        words += ["--llm-base-url", server.base_url, "--spacy-model", "world", "--max-usd"]
        assert main([*words, "0.02"]) == 1
        says = capsys.readouterr().err
        assert "The study's limit is reached at `sugarcrepe`" in says and "`max_usd`" in says
        first, answers = paid_by([*(out / "products").iterdir()])
        assert 0.01 < first <= 0.02 and f"{answers:,} LLM answers" in says
        assert main([*words, "1"]) == 0
    table = pd.read_csv(out / "overhead.csv").set_index("method")
    whole, answers = paid_by([*(out / "products").iterdir()])
    # equal captions are asked about once, and count each time
    assert table.loc["laclip", "llm_calls"] == 160 and table.loc["sugarcrepe", "llm_calls"] == 480
    assert 600 < answers < 640 and whole < table["dollars"].sum() < 1.1 * whole
    asked = [json.loads(line)["digest"] for line in log.read_text().splitlines()]
    assert len(asked) == answers  # nothing was asked twice
