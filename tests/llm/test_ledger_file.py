"""The file of a ledger: where it lies, and what is beside it."""

import pytest
from ledgers import ledger_in, pay, rows

from repair_hf.llm import ledger_file
from repair_hf.llm.ledger_file import connect, find_ledger
from repair_hf.runtime.options import UserError


def test_a_ledger_is_one_file_when_nobody_has_it_open(tmp_path):
    pay(tmp_path, "key")
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]
    assert [row["key"] for row in rows(tmp_path)] == ["key"]
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]  # who reads leaves nothing behind


def test_a_damaged_ledger_is_an_error_that_names_it(tmp_path):
    (tmp_path / "ledger.sqlite").write_bytes(b"no database" * 1000)
    for look in (ledger_in, rows):
        with pytest.raises(UserError, match="ledger.sqlite"):
            look(tmp_path)


def test_a_run_finds_the_ledger_of_a_folder_above_it_only_if_it_paid_there(tmp_path):
    pay(tmp_path, "key", run="one/records")
    assert find_ledger(tmp_path / "one" / "records") == (tmp_path / "ledger.sqlite", "one/records")
    assert find_ledger(tmp_path / "two" / "records") is None


@pytest.mark.parametrize(("kind", "mode"), [("ext4", "wal"), ("nfs4", "truncate")])
def test_on_a_network_drive_processes_share_no_memory(kind, mode, tmp_path, monkeypatch):
    part = type("Part", (), {"mountpoint": str(tmp_path.resolve()), "fstype": kind})
    monkeypatch.setattr(ledger_file.psutil, "disk_partitions", lambda all: [part])
    database = connect(tmp_path / "ledger.sqlite")
    assert database.execute("PRAGMA journal_mode").fetchone()[0] == mode
    database.close()
