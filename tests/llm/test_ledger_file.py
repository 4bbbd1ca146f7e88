"""The file of a ledger: where it lies, and what is beside it."""

import asyncio
import logging
import sqlite3
import threading
from contextlib import closing

import pytest
from ledgers import ledger_in, pay, rows, send_once

from repair_hf.llm import ledger as ledger_module
from repair_hf.llm import ledger_file
from repair_hf.llm.ledger import _ADD, Reply, Topic
from repair_hf.llm.ledger_file import LedgerLocked, connect, find_ledger, place_of
from repair_hf.llm.provider import KEEP
from repair_hf.runtime import disk
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


def test_a_ledger_that_another_program_holds_is_in_use_and_not_damaged(tmp_path, monkeypatch):
    pay(tmp_path, "key")
    monkeypatch.setattr(ledger_file, "PATIENCE", 0.1)
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        for look in (ledger_in, rows, lambda folder: find_ledger(folder / "run")):
            with pytest.raises(UserError, match="in use by another process .*later") as caught:
                look(tmp_path)
            assert "delete" not in str(caught.value)


@pytest.fixture
def viewer(tmp_path, monkeypatch):
    """Another program that can lock the ledger of the test's folder."""
    pay(tmp_path, "paid")
    monkeypatch.setattr(ledger_file, "PATIENCE", 0.1)
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as other:
        yield other


def test_a_ledger_that_is_locked_in_the_middle_of_a_run_stops_it_with_one_line(tmp_path, viewer):
    async def send() -> Reply:
        raise AssertionError("nothing is sent")

    with ledger_in(tmp_path) as ledger:
        viewer.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerLocked, match="Another program has locked .*ledger.sqlite.* Close it, and run"):
            asyncio.run(send_once(ledger, "key", send))
        assert ledger.find("paid") is not None
    viewer.execute("ROLLBACK")
    assert [row["key"] for row in rows(tmp_path)] == ["paid"] and not rows(tmp_path, "lost")


def test_an_answer_that_comes_while_the_ledger_is_locked_waits_to_be_written(tmp_path, viewer, caplog):
    class Release(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            viewer.execute("ROLLBACK")

    async def send() -> Reply:
        viewer.execute("BEGIN IMMEDIATE")
        KEEP.get()(b"a body")  # as a response comes
        return Reply("yes", "stop", 10, 2, 0.5, "m")

    release = Release()
    logging.getLogger("repair_hf.llm.ledger").addHandler(release)
    try:
        with ledger_in(tmp_path) as ledger:
            call = asyncio.run(send_once(ledger, "key", send))
    finally:
        logging.getLogger("repair_hf.llm.ledger").removeHandler(release)
    assert call.is_new and {row["key"] for row in rows(tmp_path)} == {"key", "paid"}
    assert "has locked" in caplog.text and "waits to be written" in caplog.text


def test_a_kill_while_a_ledger_closes_is_not_taken_for_a_lost_log(tmp_path):
    """The log goes last: a lock that is left without one says that payments are gone."""
    left: dict[str, list] = {}
    pay(tmp_path, "key")
    with ledger_in(tmp_path) as ledger:
        ledger.database.set_trace_callback(lambda wanted: left.update({wanted: [*tmp_path.glob("*.lock")]}))
    assert left["PRAGMA journal_mode = DELETE"] == [] and not [*tmp_path.glob("ledger.sqlite?*")]


def test_a_run_finds_the_ledger_of_a_folder_above_it_only_if_it_paid_there(tmp_path):
    pay(tmp_path, "key", run="one/records")
    assert find_ledger(tmp_path / "one" / "records") == (tmp_path / "ledger.sqlite", "one/records")
    assert find_ledger(tmp_path / "two" / "records") is None


@pytest.mark.parametrize(("kind", "mode"), [("ext4", "wal"), ("nfs4", "truncate")])
def test_on_a_network_drive_processes_share_no_memory(kind, mode, tmp_path, monkeypatch):
    part = type("Part", (), {"mountpoint": str(tmp_path.resolve()), "fstype": kind})
    monkeypatch.setattr(disk.psutil, "disk_partitions", lambda all: [part])
    database = connect(tmp_path / "ledger.sqlite")
    assert database.execute("PRAGMA journal_mode").fetchone()[0] == mode
    database.close()


def test_a_file_of_someone_else_in_a_folder_above_is_left_alone(tmp_path):
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        database.execute("CREATE TABLE run (name)")
    database.close()
    assert find_ledger(tmp_path / "run") is None
    with pytest.raises(UserError, match="no ledger of version 1"):
        ledger_in(tmp_path)
    (tmp_path / "ledger.sqlite").write_bytes(b"no database" * 1000)
    assert find_ledger(tmp_path / "run") is None


def test_a_damaged_ledger_of_a_folder_above_is_not_taken_for_one_of_someone_else(tmp_path):
    """The run would pay anew, into a ledger of its own."""
    pay(tmp_path, "key", run="run")
    pages = (tmp_path / "ledger.sqlite").read_bytes()
    (tmp_path / "ledger.sqlite").write_bytes(pages[:4096] + b"\x9c" * (len(pages) - 4096))
    with pytest.raises(UserError, match="ledger.sqlite is damaged .*malformed"):
        find_ledger(tmp_path / "run")


def test_a_folder_that_has_paid_gets_no_second_ledger(tmp_path):
    pay(tmp_path / "run", "key")
    with pytest.raises(UserError, match="has paid from .*--answers-from"):
        place_of(tmp_path / "run", str(tmp_path))


def test_an_answer_is_asked_again_only_while_its_file_is_gone(tmp_path):
    """Two runs list a file as missing; one pays for it anew before the other one asks."""
    pay(tmp_path, "key")
    file = tmp_path / "key.png"
    with ledger_in(tmp_path) as one, ledger_in(tmp_path) as other:
        one.ask_again("key", lambda: not file.is_file())
        assert one.find("key") is None
        file.touch()
        one.add("key", 1.0, Topic("edit", "t2i", "m"), "reserved")
        other.ask_again("key", lambda: not file.is_file())  # it is on its way
        one.answer("key", Reply("key.png", "stop", 1, 1, 0.5, "m"))
        other.ask_again("key", lambda: not file.is_file())
        assert other.find("key").state == "answered" and other.total == (1.0, 2)


def test_an_answer_whose_row_was_given_up_is_written_as_paid(tmp_path):
    started, settled = threading.Event(), threading.Event()

    async def send() -> Reply:
        started.set()
        await asyncio.to_thread(settled.wait, 30)
        return Reply("yes", "stop", 1, 1, 0.5, "m")

    with ledger_in(tmp_path) as ledger:

        async def main() -> None:
            paying = asyncio.create_task(send_once(ledger, "key", send))
            await asyncio.to_thread(started.wait, 30)
            ledger._settle(ledger._owner)  # as another process does that takes this one for dead
            settled.set()
            await paying

        asyncio.run(main())
        assert ledger.find("key").reply.text == "yes" and ledger.total == (1.5, 2)


@pytest.mark.parametrize("dollars", [None, 0.5])
def test_only_the_first_call_of_a_model_goes_alone_with_or_without_a_bill(dollars, tmp_path):
    at_once: dict[str, list[int]] = {"llm": [], "editor": []}

    async def main() -> None:
        under_way = {"llm": 0, "editor": 0}
        met = {"llm": asyncio.Event(), "editor": asyncio.Event()}

        async def ask(model: str, number: int) -> None:
            async def send() -> Reply:
                under_way[model] += 1
                at_once[model].append(under_way[model])
                if under_way[model] == 5:
                    met[model].set()
                if len(at_once[model]) > 1:  # all the others at once
                    await asyncio.wait_for(met[model].wait(), 60)
                under_way[model] -= 1
                return Reply("yes", "stop", 0, 0, dollars, model)

            await send_once(ledger, f"{model} {number}", send, model=model)

        for model in ("llm", "editor"):
            await asyncio.gather(*(ask(model, number) for number in range(6)))

    with ledger_in(tmp_path, max_usd=100.0) as ledger:
        asyncio.run(main())
    for seen in at_once.values():
        assert seen[0] == 1 and max(seen) == 5


def test_a_sum_that_a_disk_has_changed_lets_nothing_through(tmp_path):
    for key in ("a", "b"):
        pay(tmp_path, key, 0.25)
    with sqlite3.connect(tmp_path / "ledger.sqlite") as database:
        database.execute("UPDATE total SET dollars = 0, calls = 0")
    database.close()
    with ledger_in(tmp_path, max_calls=2) as ledger:
        assert ledger.total == (0.5, 2) and not ledger.add("c", 0.0, Topic("audit", "i2t", "m"), "reserved")


def test_a_reservation_does_not_look_at_all_rows(tmp_path):
    with ledger_in(tmp_path, max_usd=1.0) as ledger:
        plan = ledger.database.execute(f"EXPLAIN QUERY PLAN {_ADD}", [None] * 12).fetchall()
    assert [step[-1] for step in plan] == ["SCAN total"]


def test_who_waits_for_a_bill_does_not_list_the_folder(tmp_path, monkeypatch):
    topic = Topic("audit", "i2t", "m")
    monkeypatch.setattr(ledger_module, "POLL", 0.0)

    async def wait(one) -> str:
        waiting = asyncio.create_task(one.reserve("second", lambda: 1.0, topic))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        one.answer("first", Reply("yes", "stop", 1, 1, 0.0, "m"))
        return (await waiting)[0].state

    with ledger_in(tmp_path, max_usd=1.0) as one:
        one.add("first", 1.0, topic, "reserved")
        with monkeypatch.context() as patch:
            patch.setattr(ledger_module, "owners_of", lambda path: pytest.fail("it was listed"))
            assert asyncio.run(wait(one)) == "reserved"


def test_a_rejection_elsewhere_leaves_a_submitted_question_counted(tmp_path):
    topic = Topic("audit", "i2t", "m")
    with ledger_in(tmp_path) as one, ledger_in(tmp_path) as other:
        one.add("key", 1.0, topic, "submitted", "batch_1")
        other.reject("key", "not now", topic)
        assert one.find("key").state == "submitted" and one.total == (1.0, 1)


def test_who_may_not_write_reads_no_ledger_that_was_not_closed(tmp_path, monkeypatch):
    """SQLite's log, which holds the newest rows, is read by those alone who may write beside it."""
    with ledger_in(tmp_path) as ledger:
        ledger.add("key", 1.0, Topic("audit", "i2t", "m"), "reserved")
        monkeypatch.setattr(ledger_file.os, "access", lambda *_: False)
        with pytest.raises(UserError, match="was not closed.*Copy both files"):
            rows(tmp_path)
    assert len(rows(tmp_path, "lost")) == 1
