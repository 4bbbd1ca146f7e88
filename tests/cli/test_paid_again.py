"""`repair-hf synthesize` with a hosted LLM and a hosted editor pays for nothing that its ledger has."""

import json
from pathlib import Path

import pytest
from biller import MODELS, Biller
from ledgers import ledger_in, rows
from provider_server import ProviderServer

from repair_hf.cli.main import main


@pytest.fixture
def hosted(inputs, monkeypatch):
    """A server that counts its bills, and what starts the command with it; more words, and its exit status."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with ProviderServer(Biller()) as server:
        where = ["--llm-base-url", server.url(), "--editor-base-url", server.url(), "--check-edits", "0"]

        def synthesize(folder: Path, *words: str) -> int:
            return main(
                ["synthesize", *inputs, *MODELS, *where, "--check-edits", "0", "--output", str(folder), *words]
            )

        yield server.answer, synthesize


def test_runs_with_one_ledger_pay_once_and_make_deleted_images_again(hosted, tmp_path, capsys):
    biller, synthesize = hosted
    shared = ["--ledger", str(tmp_path / "one" / "ledger.sqlite")]
    assert synthesize(tmp_path / "one") == 0
    paid = biller.counts.copy()
    assert paid["image"] > 3 and synthesize(tmp_path / "two", *shared) == 0 and biller.counts == paid
    assert not (tmp_path / "two" / "candidates").exists() and {row["run"] for row in rows(tmp_path / "one")} == {"."}
    for path in sorted((tmp_path / "one" / "candidates").rglob("*.png"))[:3]:
        path.unlink()
    assert synthesize(tmp_path / "three", *shared) == 0
    assert biller.counts - paid == {"image": 3} and len(rows(tmp_path / "one", "lost")) == 3
    assert "Traceback" not in capsys.readouterr().err
    other = ["--ledger", str(tmp_path / "one" / "summary.json")]
    assert synthesize(tmp_path / "four", *other) == 2
    assert "summary.json cannot be used as a ledger" in capsys.readouterr().err


def test_a_ledger_that_was_named_from_another_folder_is_found(inputs, tmp_path, monkeypatch, capsys):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    words = ["--llm", "world/oracle", "--editor", "world", "--ledger", "paid.sqlite", "--output", "records"]
    assert main(["synthesize", *inputs, *words]) == 0
    monkeypatch.chdir(tmp_path / "there")
    capsys.readouterr()
    assert main(["analyze", "--calls", "../here/records"]) == 0
    calls = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert calls and {call["run"] for call in calls} == {"records"}


def test_a_ceiling_on_calls_counts_answers_and_images_as_the_table_does(hosted, tmp_path, capsys):
    biller, synthesize = hosted
    assert synthesize(tmp_path / "whole") == 0
    most = biller.counts.total() - 2
    biller.counts.clear()
    capsys.readouterr()
    assert synthesize(tmp_path / "r", "--max-calls", str(most)) == 1
    shown = capsys.readouterr()
    *_, total = (line.split() for line in shown.out.splitlines() if line.strip())
    assert total[:3] == ["all", "both", str(most)] and f"reached: {most} answers and images" in shown.err
    assert biller.counts.total() == most and biller.counts["image"] > 0
    with ledger_in(tmp_path / "r") as ledger:
        assert ledger.total[1] == most
