"""Several processes share a study, and what a killed one was doing another one ends; batches wait for a provider."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from batch_server import BatchServer
from chat_server import ChatServer
from ledgers import ledger_in
from study_runs import stamps, study

from repair_hf.cli.main import main
from repair_hf.llm.cost import paid_in
from repair_hf.llm.ledger_file import FILE
from repair_hf.toyworld import oracle

pytestmark = pytest.mark.slow


def start(*words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "repair_hf", "study", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def paid_by(study_folder: Path, *methods: str) -> tuple[float, int]:
    """Return the dollars that methods have paid, and for how many answers and images."""
    uses = [use for name in methods for use in paid_in(study_folder / FILE, f"tiny/{name}").values()]
    return sum(use.dollars for use in uses), sum(use.calls for use in uses)


def test_two_processes_share_a_study_and_pay_nothing_twice(tmp_path):
    words = f"--size tiny --seeds 2 --output {tmp_path} --methods wo-pqc repair-batch laclip".split()
    running = [start(*words) for _ in range(2)]
    shown = [process.communicate(timeout=1800)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], shown
    cells = [line for text in shown for line in text.splitlines() if line.startswith("cell ")]
    found = pq.read_table(tmp_path / "results.parquet").to_pandas()
    assert len(cells) == len(found[found["blend"] == 1]) == len(found.drop_duplicates(["method", "seed"])) == 9
    assert all(any(line.startswith("cell ") for line in text.splitlines()) for text in shown)  # both worked
    with ledger_in(tmp_path) as ledger:
        assert not ledger.database.execute("SELECT 1 FROM call WHERE state = 'lost'").fetchone()
    tables = [text.partition("Does it help?")[2] for text in shown]
    assert tables[0] == tables[1] != ""
    before = stamps(tmp_path)
    study(*words)
    assert stamps(tmp_path) == before


def test_a_killed_study_goes_on_and_loses_one_training_at_most(tmp_path):
    """Killed in its second training: what was whole stays as it was, and no answer is paid again."""
    words = ["--size", "tiny", "--seeds", "2", "--methods", "sugarcrepe", "--output", str(tmp_path)]
    process = start(*words)
    while not list((tmp_path / "cells").glob("*--sugarcrepe--*seed1*")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = stamps(tmp_path)
    paid = paid_by(tmp_path, "sugarcrepe")
    assert len(list((tmp_path / "rows").iterdir())) == 4  # base, plain training, one of sugarcrepe
    shown = study(*words)
    after = stamps(tmp_path)
    assert {path: after[path] for path in before} == before and paid_by(tmp_path, "sugarcrepe") == paid
    assert shown.count("cell ") == 1 and len(list((tmp_path / "rows").iterdir())) == 5


def test_a_ceiling_holds_for_all_methods_together_and_a_higher_one_goes_on(tmp_path, monkeypatch, capsys):
    """Two methods of 160 captions each, at the list price of a model that the oracle stands for."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    log = tmp_path / "requests.jsonl"
    words = f"study --size tiny --seeds 1 --methods laclip sugarcrepe --output {tmp_path / 'out'} --max-usd".split()
    model = "--llm openai/gpt-4o-mini --spacy-model world --llm-base-url".split()
    with ChatServer(oracle.answer_to, log=log) as server:
        assert main([*words, "0.02", *model, server.base_url]) == 1
        assert "--max-usd 0.02" in capsys.readouterr().err
        makers = tmp_path / "out", "laclip", "sugarcrepe"
        assert 0.01 < paid_by(*makers)[0] <= 0.02
        assert main([*words, "1", *model, server.base_url]) == 0
    found = pq.read_table(tmp_path / "out" / "results.parquet").to_pandas().groupby("method")["llm_calls"].first()
    assert (found["laclip"], found["sugarcrepe"]) == (160, 480)
    asked = [json.loads(line)["digest"] for line in log.read_text().splitlines()]
    assert len(asked) == len(set(asked)) == paid_by(*makers)[1]  # nothing was asked twice


def test_batches_wait_for_the_provider_and_cost_half(tmp_path, monkeypatch, capsys):
    """`tripletclip` asks what `sugarcrepe` asks: it takes over."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    methods = ["laclip", "sugarcrepe", "tripletclip", "repair-i2t"]
    words = ["study", "--size", "tiny", "--seeds", "1", "--max-queries", "4", "--llm", "openai/gpt-4o-mini"]
    words += ["--max-usd", "1", "--methods", *methods]
    with BatchServer(oracle.answer_to) as server:
        words += ["--llm-base-url", server.base_url, "--output"]
        assert main([*words, str(tmp_path / "whole")]) == 0
        told = []
        while main([*words, str(tmp_path / "out"), "--batch"]):
            told.append(capsys.readouterr().err.strip().splitlines()[-1])
            assert told[-1].endswith("Rerun the same command to collect the answers.") and len(told) < 9
    assert len(told) >= 3

    def paid(folder: Path) -> tuple[float, int]:
        return paid_by(folder, *methods)

    assert paid(tmp_path / "out")[0] == pytest.approx(paid(tmp_path / "whole")[0] / 2)
    assert paid(tmp_path / "out")[1] == paid(tmp_path / "whole")[1]
