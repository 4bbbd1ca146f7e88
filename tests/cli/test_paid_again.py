"""`repair-hf synthesize` with a hosted LLM and a hosted editor pays for nothing that it, or another folder, has."""

import shutil
from pathlib import Path

import pytest
from biller import MODELS, Biller
from ledgers import ledger_in, rows
from provider_server import ProviderServer

from repair_hf.cli.main import main
from repair_hf.llm.ledger_file import take_over
from repair_hf.runtime.stage import claim


@pytest.fixture
def hosted(inputs, monkeypatch):
    """A server that counts its bills, and what starts the command with it; more words, and its exit status."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with ProviderServer(Biller()) as server:
        where = ["--llm-base-url", server.url(), "--editor-base-url", server.url()]

        def synthesize(folder: Path, *words: str) -> int:
            return main(["synthesize", *inputs, *MODELS, *where, "--output", str(folder), *words])

        server.answer.batches = server.batches
        yield server.answer, synthesize


def test_a_chain_of_folders_pays_once_and_makes_damaged_images_again(hosted, tmp_path, capsys, caplog):
    biller, synthesize = hosted
    one, two, three, four = (tmp_path / name for name in ("one", "two", "three", "four"))
    assert synthesize(one) == 0
    paid = biller.counts.copy()
    assert paid["image"] > 3 and synthesize(two, "--answers-from", str(one)) == 0
    assert synthesize(three, "--answers-from", str(two)) == 0
    assert biller.counts == paid and sum(not row["inherited"] for row in rows(three)) == 0
    for path in sorted((three / "candidates").rglob("*.png"))[:3]:
        path.unlink()  # a hard link
        path.write_bytes(b"damaged")
    assert synthesize(four, "--answers-from", str(three)) == 0
    assert biller.counts - paid == {"image": 3}
    assert caplog.text.count("is damaged") == 1 and "Traceback" not in capsys.readouterr().err


def test_a_ledger_that_lost_its_payments_is_an_error_and_nothing_is_bought(hosted, tmp_path, capsys):
    biller, synthesize = hosted
    assert synthesize(tmp_path / "r", "--limit", "4") == 0
    paid = biller.counts.copy()
    (tmp_path / "r" / "ledger.sqlite").unlink()
    capsys.readouterr()
    assert synthesize(tmp_path / "r") == 2
    assert biller.counts == paid and "its ledger holds 0" in capsys.readouterr().err


def test_a_killed_run_whose_log_is_gone_is_an_error_and_nothing_is_bought(hosted, tmp_path, capsys):
    biller, synthesize = hosted
    assert synthesize(tmp_path / "whole", "--limit", "4") == 0
    folder, paid = tmp_path / "killed", biller.counts.copy()
    claim(folder, "synthesize")
    with ledger_in(tmp_path / "live") as ledger:  # a copy of a folder in use is what a kill leaves
        take_over(ledger.database, ".", tmp_path / "whole", moves=True)
        for path in (tmp_path / "live").iterdir():
            shutil.copy(path, folder)
    (log,) = folder.glob("*-wal")
    log.rename(tmp_path / "log")
    capsys.readouterr()
    for _ in range(2):
        assert synthesize(folder, "--limit", "4") == 2
        assert "ledger.sqlite-wal, which is gone. Put it back" in capsys.readouterr().err
    (tmp_path / "log").rename(log)
    (folder / "ledger.sqlite-shm").unlink()
    assert synthesize(folder, "--limit", "4") == 0 and biller.counts["answer"] == paid["answer"]
    assert not list(folder.glob("ledger.sqlite?*"))  # closed again


def test_a_folder_that_left_the_one_of_its_ledger_is_an_error_and_nothing_is_bought(hosted, tmp_path, capsys):
    biller, synthesize = hosted
    assert synthesize(tmp_path / "home" / "r", "--ledger", str(tmp_path / "home"), "--limit", "4") == 0
    paid = biller.counts.copy()
    (tmp_path / "home" / "r").rename(tmp_path / "r")
    capsys.readouterr()
    assert synthesize(tmp_path / "r") == 2
    assert biller.counts == paid and "the folder of a shared --ledger must stay below it" in capsys.readouterr().err


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


def test_the_open_questions_of_another_folder_are_not_bought_again(hosted, tmp_path, capsys):
    biller, synthesize = hosted
    biller.batches.delay = 3600
    assert synthesize(tmp_path / "one", "--batch") == 1 and len(rows(tmp_path / "one", "submitted")) > 3
    capsys.readouterr()
    assert synthesize(tmp_path / "two", "--answers-from", str(tmp_path / "one")) == 2
    assert "whose batches are not collected yet" in capsys.readouterr().err and not biller.counts
    assert not (tmp_path / "two" / "ledger.sqlite").exists()
