"""A stopped synthesis leaves records that can be used, and can grow; nothing in its ledger is paid again."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from biller import MODELS, Biller
from datasets import Dataset
from ledgers import answers, ledger_in, rows
from provider_server import ProviderServer

from repair_hf.cli.main import main
from repair_hf.records.dataset import load_dropped, load_kept, load_records

WORLD = ["--llm", "world/oracle", "--editor", "world", "--candidates", "1"]


def synthesize(inputs: list[str], output: Path, *words: str) -> int:
    return main(["synthesize", *inputs, *WORLD, "--output", str(output), *words])


def summary_of(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def ids(folder: Path) -> set[str]:
    return set(load_records(folder)["record_id"])


@pytest.fixture(scope="module")
def stopped(inputs, tmp_path_factory) -> tuple[Path, str]:
    """The folder of a run that reached a ceiling, and what it showed. Only read it."""
    folder = tmp_path_factory.mktemp("stopped") / "records"
    with redirect_stdout(StringIO()) as shown:
        assert synthesize(inputs, folder, "--max-calls", "45") == 1
    return folder, shown.getvalue()


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "records"
    assert synthesize(inputs, folder) == 0
    return folder


def test_what_was_finished_before_a_ceiling_is_used_and_the_rest_is_counted(stopped, inputs, capsys, caplog, tmp_path):
    folder, summary = stopped[0], summary_of(stopped[0])
    kept, dropped = load_kept(folder), load_dropped(folder)
    assert summary["open"] == 20 - len(kept) - len(dropped) > 0 < len(kept)
    said = f"{summary['open']} failures are still open"
    pairs = inputs[:2]
    for words in (
        ["show", str(folder), "--output", str(tmp_path / "sheet.html")],
        ["analyze", str(folder), "--output", str(tmp_path / "report")],
        ["export", "triplets", "--records", str(folder), *pairs, "--output", str(tmp_path / "triplets")],
        ["push", "records", str(folder), "--repo", "me/x", "--dry-run"],
    ):
        caplog.clear()
        assert main(words) == 0
        shown = capsys.readouterr()
        assert said in caplog.text, words
        assert words[0] != "push" or said in shown.out  # the card, for those who read only that


def test_the_stopped_run_says_what_it_leaves_and_goes_on(stopped, whole, inputs, tmp_path):
    folder, needed = shutil.copytree(stopped[0], tmp_path / "again"), answers(whole)
    assert f"{len(load_kept(folder))} records are written" in stopped[1]
    assert f"{summary_of(folder)['open']} failures are still open" in stopped[1]
    before = ids(folder)
    assert synthesize(inputs, folder, "--max-calls", "1000") == 0
    assert answers(folder) == needed and before <= ids(folder) == ids(whole) and summary_of(folder)["open"] == 0


def test_a_trial_grows_in_its_folder_and_pays_nothing_twice(whole, inputs, tmp_path, capsys):
    folder, found, asked = tmp_path / "r", [], []
    for words in (["--limit", "2"], ["--limit", "4"], []):
        assert synthesize(inputs, folder, *words) == 0
        found.append(ids(folder))
        asked.append([row["key"] for row in rows(folder)])
    assert found[0] < found[1] < found[2] == ids(whole)
    assert len(asked[2]) == len(set(asked[2])) == answers(whole) and set(asked[0]) < set(asked[1])
    capsys.readouterr()
    assert synthesize(inputs, folder, "--limit", "4") == 2  # would take records away
    said = capsys.readouterr().err.splitlines()[-1]
    assert "`limit`" not in said and f"--ledger {folder / 'ledger.sqlite'}" in said and ids(folder) == found[2]
    assert synthesize(inputs, folder, "--seed", "1") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "seed (0 -> 1)" in said and "delete" not in said and "--ledger" in said


@pytest.mark.slow
def test_more_failures_of_a_larger_mining_go_on_in_the_same_folder(inputs, tmp_path):
    folder, mined = tmp_path / "r", Dataset.from_parquet(f"{inputs[3]}/failures.parquet").select(range(8))
    few, more = tmp_path / "few.parquet", tmp_path / "more.parquet"
    mined.select(range(0, 8, 2)).to_parquet(few)
    mined.to_parquet(more)
    assert synthesize(inputs, folder, "--failures", str(few)) == 0
    first = ids(folder)
    assert synthesize(inputs, folder, "--failures", str(more)) == 0
    assert first < ids(folder) and len(load_kept(folder)) + len(load_dropped(folder)) == len(mined)


def test_more_edits_are_checked_in_a_finished_folder_and_fewer_change_nothing(inputs, tmp_path, capsys):
    folder, checked, asked = tmp_path / "r", [], []
    for count in ("2", "5", "3"):
        assert synthesize(inputs, folder, "--limit", "4", "--check-edits", count) == 0
        checked.append(sum(fits is not None for fits in load_records(folder)["edit_fits"]))
        asked.append([row["key"] for row in rows(folder)])
        assert ("nothing was done" in capsys.readouterr().out) == (count == "3")
    assert checked == [2, 5, 5] and len(asked[1]) == len(asked[0]) + 3 and set(asked[0]) < set(asked[1])
    assert synthesize(inputs, folder, "--limit", "4", "--check-edits", "all") == 2  # decides which records there are
    assert "check_edits_all (False -> True). Give another --output, and --ledger" in capsys.readouterr().err


@pytest.fixture(scope="module")
def hosted(inputs, tmp_path_factory) -> Iterator[tuple[Counter, Callable[..., int], Path, Counter]]:
    """Bills of a server so far; what starts the command with it; the folder of a whole run (only read it), its bills.

    The command gets a folder and more words, and gives its exit status.
    """
    with pytest.MonkeyPatch.context() as patch, ProviderServer(Biller()) as server:
        patch.setenv("OPENAI_API_KEY", "none")
        where = ["--llm-base-url", server.url(), "--editor-base-url", server.url(), "--limit", "4"]

        def synthesize(folder: Path, *words: str) -> int:
            return main(
                ["synthesize", *inputs, *MODELS, *where, "--check-edits", "0", "--output", str(folder), *words]
            )

        whole = tmp_path_factory.mktemp("hosted") / "whole"
        assert synthesize(whole) == 0
        yield server.answer.counts, synthesize, whole, server.answer.counts.copy()


def test_runs_with_one_ledger_pay_once_and_make_deleted_images_again(hosted, tmp_path, capsys):
    billed, synthesize, whole, paid = hosted
    shutil.copytree(whole, tmp_path / "one")
    shared, before = ["--ledger", str(tmp_path / "one" / "ledger.sqlite")], billed.copy()
    assert paid["image"] > 3 and synthesize(tmp_path / "two", *shared) == 0 and billed == before
    assert not (tmp_path / "two" / "candidates").exists() and {row["run"] for row in rows(tmp_path / "one")} == {"."}
    for path in sorted((tmp_path / "one" / "candidates").rglob("*.png"))[:3]:
        path.unlink()
    assert synthesize(tmp_path / "three", *shared) == 0
    assert billed - before == {"image": 3} and len(rows(tmp_path / "one", "lost")) == 3
    assert "Traceback" not in capsys.readouterr().err
    other = ["--ledger", str(tmp_path / "one" / "summary.json")]
    assert synthesize(tmp_path / "four", *other) == 2
    assert "summary.json cannot be used as a ledger" in capsys.readouterr().err


def test_a_ledger_that_was_named_from_another_folder_is_found(inputs, tmp_path, monkeypatch, capsys):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    words = ["--llm", "world/oracle", "--editor", "world", "--limit", "1", "--ledger", "paid.sqlite"]
    assert main(["synthesize", *inputs, *words, "--output", "records"]) == 0
    monkeypatch.chdir(tmp_path / "there")
    capsys.readouterr()
    assert main(["analyze", "--calls", "../here/records"]) == 0
    calls = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert calls and {call["run"] for call in calls} == {"records"}


def test_a_ceiling_on_calls_counts_answers_and_images_as_the_table_does(hosted, tmp_path, capsys):
    billed, synthesize, _, paid = hosted
    most, before = paid.total() - 2, billed.copy()
    assert synthesize(tmp_path / "r", "--max-calls", str(most)) == 1
    shown = capsys.readouterr()
    *_, total = (line.split() for line in shown.out.splitlines() if line.strip())
    assert total[:3] == ["all", "both", str(most)] and f"reached: {most} answers and images" in shown.err
    assert (billed - before).total() == most and billed["image"] > before["image"]
    with ledger_in(tmp_path / "r") as ledger:
        assert ledger.total[1] == most
