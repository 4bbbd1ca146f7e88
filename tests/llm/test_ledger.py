"""The ledger's file: another program that has it open, a file that is none, rows that are given up."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from children import Child
from ledgers import answers, ledger_in, pay, rows

from repair_hf.llm import ledger as ledger_module
from repair_hf.llm.cost import paid_in
from repair_hf.llm.ledger import BudgetSpent, Ledger, Reply, Topic
from repair_hf.llm.ledger_file import FILE, place_of, read_calls
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped

TOPIC = Topic("audit", "i2t", "m")
YES = Reply("yes", "stop", 10, 2, 0.5, "m")


async def answer() -> Reply:
    return YES


def pay_and_be_killed(folder: Path) -> int:
    """Pay once, and end with a call on its way, as `kill -9` would."""

    async def main() -> None:
        ledger = ledger_in(folder)
        await ledger.pay("paid", TOPIC, 1.0, answer)
        await ledger.reserve("sent", TOPIC, 1.0)
        await ledger.reserve("drafted", TOPIC, 1.0, "draft")
        ledger_module.psutil.Process().kill()

    asyncio.run(main())
    return 0


@pytest.fixture
def killed(tmp_path) -> Path:
    assert Child(pay_and_be_killed, tmp_path).wait() == -9
    return tmp_path


def viewed(path: Path) -> None:
    with closing(sqlite3.connect(path)) as viewer:
        assert viewer.execute("SELECT COUNT(*) FROM call").fetchone() == (3,)


def analyzed(path: Path) -> None:
    with closing(sqlite3.connect(path)) as viewer:
        viewer.executescript("ANALYZE; CREATE INDEX mine ON call (stage); CREATE TABLE notes (text); VACUUM;")


@pytest.mark.parametrize("look", [None, viewed, analyzed])
def test_after_a_kill_what_is_paid_is_there_whoever_has_opened_the_file(killed, look):
    if look is not None:
        look(killed / FILE)
    with ledger_in(killed) as ledger:
        assert ledger.find("paid") == YES and ledger.find("sent") is None
        assert ledger.total == (1.5, 2)  # what was on its way may be billed; what was drafted never left
        assert asyncio.run(ledger.pay("sent", TOPIC, 1.0, answer)) == (YES, True)
    assert len(rows(killed, "lost")) == 1 and answers(killed) == 2
    assert paid_in(killed / FILE)["audit", "i2t"].dollars == 2.0


def test_a_process_with_the_number_of_a_dead_one_does_not_keep_its_calls(tmp_path):
    with ledger_in(tmp_path) as ledger:
        asyncio.run(ledger.reserve("sent", TOPIC, 1.0))
        ledger.database.execute("UPDATE call SET owner = ?", (f"{os.getpid()} 1.0 0",))  # it began in 1970
    with ledger_in(tmp_path):
        assert len(rows(tmp_path, "lost")) == 1


def test_no_other_file_lies_beside_a_ledger_that_was_closed(tmp_path):
    """Nothing is unlinked while it is open, as Windows demands: there are no lock files."""
    pay(tmp_path, "key")
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("content", [b"no database" * 1000, None])
def test_what_is_no_ledger_is_an_error_of_one_line_with_the_path(content, tmp_path):
    path = tmp_path / "ledger.sqlite"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^{path} cannot be used as a ledger: [^\n]+\.$"):
        Ledger(path)
    if content is not None:
        with pytest.raises(UserError, match="cannot be used as a ledger"):
            list(read_calls(path))
        assert path.read_bytes() == content


def test_a_database_of_something_else_and_a_read_only_one_are_errors_of_one_line(tmp_path, monkeypatch):
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as database:
        database.execute("CREATE TABLE call (name)")
    with pytest.raises(UserError, match=r"other.sqlite cannot be used as a ledger: .*no column|no such column"):
        Ledger(tmp_path / "other.sqlite")
    pay(tmp_path, "key")
    connect = sqlite3.connect
    monkeypatch.setattr(  # root may write into any file
        sqlite3, "connect", lambda path, **how: connect(f"file:{path}?mode=ro", uri=True, **how)
    )
    with pytest.raises(UserError, match="ledger.sqlite cannot be used as a ledger: attempt to write a readonly"):
        ledger_in(tmp_path)


def open_new_ones(folder: Path, own: str, other: str) -> None:
    """Open one new ledger after the other, each at the moment at which the other process does."""
    for number in range(40):
        (folder / f"{own}{number}").touch()
        begin = time.monotonic()
        while not (folder / f"{other}{number}").exists():
            assert time.monotonic() < begin + 60, "the other process has ended"
        Ledger(folder / str(number) / FILE).close()


def test_processes_that_make_a_ledger_at_the_same_moment_share_it(tmp_path):
    children = [Child(open_new_ones, tmp_path, *names) for names in ("ab", "ba")]
    assert [child.wait() for child in children] == [0, 0], children[0].said()


def test_a_run_names_its_ledger_and_itself(tmp_path):
    assert place_of(tmp_path / "records", None) == (tmp_path / "records" / FILE, ".")
    shared = str(tmp_path / "shared.sqlite")
    assert place_of(tmp_path / "a" / "records", shared) == (tmp_path / "shared.sqlite", "a/records")
    for run in ("one", "two"):
        pay(tmp_path, run, run=run)
    assert {row["run"] for row in read_calls(tmp_path / FILE)} == {"one", "two"}
    assert paid_in(tmp_path / FILE, "one")["audit", "i2t"].calls == 1
    assert list(read_calls(tmp_path / "none")) == [] and paid_in(tmp_path / "none") == {}


# Another program that locks the file


@pytest.fixture
def viewer(tmp_path):
    """Another program that can lock the ledger of the test's folder."""
    pay(tmp_path, "paid")
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        yield other


def test_a_paid_answer_waits_until_it_can_be_written_and_does_not_block_the_event_loop(
    tmp_path, viewer, monkeypatch, caplog
):
    monkeypatch.setattr(ledger_module, "PATIENCE", 0.2)

    async def send() -> Reply:
        viewer.execute("BEGIN IMMEDIATE")
        return YES

    async def main() -> None:
        paying = asyncio.create_task(ledger.pay("key", TOPIC, 1.0, send))
        while not paying.done():
            await asyncio.sleep(0.01)
            if viewer.in_transaction and "a paid answer waits to be written" in caplog.text:
                viewer.execute("ROLLBACK")
        assert await paying == (YES, True)

    with ledger_in(tmp_path) as ledger, caplog.at_level(logging.WARNING, "repair_hf"):
        assert ledger.database.execute("PRAGMA busy_timeout").fetchone() == (0,)  # SQLite itself does not wait
        asyncio.run(main())
    assert answers(tmp_path) == 2


def test_a_ledger_that_stays_locked_stops_the_run_with_one_line_before_anything_is_sent(tmp_path, viewer, monkeypatch):
    async def send() -> Reply:
        raise AssertionError("it is sent")

    with ledger_in(tmp_path) as ledger:
        monkeypatch.setattr(ledger_module, "PATIENCE", 0.1)
        viewer.execute("BEGIN IMMEDIATE")
        with pytest.raises(RunStopped, match=r"has locked .*ledger\.sqlite\. Close it, and run the same command"):
            asyncio.run(ledger.pay("key", TOPIC, 1.0, send))
        assert ledger.find("paid") == YES
        viewer.execute("ROLLBACK")
    assert answers(tmp_path) == 1 and not rows(tmp_path, "lost")


# Rows that are given up, or wait for others


def test_an_answer_whose_file_is_gone_is_paid_again_by_one_of_two_runs(tmp_path):
    async def main() -> None:
        with ledger_in(tmp_path) as one, ledger_in(tmp_path) as other:
            await one.pay("key", TOPIC, 1.0, answer)
            await one.forget("key")
            assert one.find("key") is None and one.total == (0.5, 1)
            assert await one.reserve("key", TOPIC, 1.0) is None
            await other.forget("key")  # it has seen the file missing, too; now it is on its way
            waiting = asyncio.create_task(other.pay("key", TOPIC, 1.0, answer))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await one.answer("key", TOPIC, YES._replace(text="again"))
            reply, is_new = await waiting
            assert reply.text == "again" and not is_new and other.total == (1.0, 2)

    asyncio.run(main())
    assert paid_in(tmp_path / FILE)["audit", "i2t"].dollars == 1.0


def test_an_answer_that_comes_after_its_call_was_given_up_is_kept_and_counted(tmp_path):
    started, given_up = threading.Event(), threading.Event()

    async def send() -> Reply:
        started.set()
        await asyncio.to_thread(given_up.wait, 30)
        return YES

    async def main() -> None:
        paying = asyncio.create_task(ledger.pay("key", TOPIC, 1.0, send))
        await asyncio.to_thread(started.wait, 30)
        await ledger.give_up("key", is_lost=True)
        given_up.set()
        await paying

    with ledger_in(tmp_path) as ledger:
        asyncio.run(main())
        assert ledger.find("key") == YES and ledger.total == (1.5, 2)


def test_a_question_that_is_in_a_batch_is_not_paid_beside_it(tmp_path):
    with ledger_in(tmp_path) as ledger:
        asyncio.run(ledger.reserve("key", TOPIC, 1.0, "draft"))
        ledger.database.execute("UPDATE call SET batch = 'batch_1', owner = NULL")
        with pytest.raises(BudgetSpent, match="in a batch of another run. Collect it first, with --batch"):
            asyncio.run(ledger.pay("key", TOPIC, 1.0, answer))


def test_a_ceiling_that_lacks_only_what_others_have_reserved_waits_for_their_bills(tmp_path):
    async def main() -> None:
        with ledger_in(tmp_path, max_usd=1.2) as one, ledger_in(tmp_path, max_usd=1.2) as other:
            await one.reserve("first", TOPIC, 1.0)
            waiting = asyncio.create_task(other.pay("second", TOPIC, 0.7, answer))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await one.answer("first", TOPIC, YES)
            assert await waiting == (YES, True)
            with pytest.raises(BudgetSpent, match=r"--max-usd 1.2 is reached: \$1.00 are paid or reserved"):
                await other.pay("third", TOPIC, 0.7, answer)

    asyncio.run(main())


def test_the_highest_bill_of_a_model_is_reserved_for_its_next_call_and_for_no_other_model(tmp_path):
    async def main() -> None:
        await ledger.pay("dear", TOPIC, 1.0, dear)
        assert await ledger.reserve("b", TOPIC, 1.0) is None and ledger.total == (10.0, 2)
        assert await ledger.reserve("c", TOPIC._replace(model="other"), 1.0) is None and ledger.total == (11.0, 3)

    async def dear() -> Reply:
        return YES._replace(dollars=5.0)

    with ledger_in(tmp_path) as ledger:
        asyncio.run(main())
    with ledger_in(tmp_path) as ledger:  # another process reads it from the file
        assert asyncio.run(ledger.reserve("d", TOPIC, 1.0)) is None and ledger.total == (16.0, 4)


def test_sums_of_many_rows_read_an_index_alone(tmp_path):
    with ledger_in(tmp_path) as ledger:
        sums = "SELECT model, TOTAL(COALESCE(dollars, worst)), COUNT(*), MAX(dollars) FROM call GROUP BY model"
        plan = ledger.database.execute(f"EXPLAIN QUERY PLAN {sums}").fetchall()
    assert [step[-1] for step in plan] == ["SCAN call USING COVERING INDEX bill"]
