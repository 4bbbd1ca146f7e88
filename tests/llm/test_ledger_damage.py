"""A ledger that a disk, a copy or a kill has damaged: an error with its remedy, or every payment is still there."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ledgers import ledger_in, rows

from repair_hf.llm.ledger import Reply, Topic
from repair_hf.llm.ledger_file import FILE, take_over
from repair_hf.runtime.options import UserError

TOPIC, ANSWERS = Topic("audit", "i2t", "m"), 60
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A folder as a killed process leaves it: some rows in the file, some in its `-wal`; calls of every state."""
    folder, live = tmp_path_factory.mktemp("killed"), tmp_path_factory.mktemp("live")
    with ledger_in(live) as ledger:
        for number in range(ANSWERS):
            ledger.add(f"key {number}", 1.0, TOPIC, "reserved")
            ledger.answer(f"key {number}", Reply("yes " * 20, "stop", 10, 2, 0.5, "m"))
            if number == ANSWERS // 2:
                ledger.database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        ledger.add("sent", 1.0, TOPIC, "reserved")
        ledger.add("in a batch", 1.0, TOPIC, "submitted", "batch_1")
        ledger.reject("bad", "no", TOPIC)
        for name in (FILE, f"{FILE}-wal"):
            shutil.copy(live / name, folder / name)
    return folder


@st.composite
def damages(draw) -> list[tuple[str, str, float, int]]:
    """Which file, what happens, where (as a share of its length), and to how many bytes."""
    kinds = st.sampled_from(["flip", "zeros", "cut", "swap", "random", "insert"])
    one = st.tuples(st.sampled_from([FILE, FILE, f"{FILE}-wal"]), kinds, st.floats(0, 1), st.integers(1, 5000))
    return draw(st.lists(one, min_size=1, max_size=3))


def damage(data: bytes, kind: str, share: float, count: int) -> bytes:
    at, page = min(int(share * len(data)), max(len(data) - 1, 0)), 4096
    if kind == "flip":
        return data[:at] + bytes([data[at] ^ (1 << count % 8)]) + data[at + 1 :] if data else data
    if kind == "swap":
        first, second = at // page * page, count % (len(data) // page or 1) * page
        pages = data[first : first + page], data[second : second + page]
        found = bytearray(data)
        found[first : first + page], found[second : second + page] = pages[1], pages[0]
        return bytes(found)
    middle = {"zeros": bytes(count), "cut": b"", "random": b"\x9c" * count, "insert": b"\x01" * count}[kind]
    after = data[at:] if kind == "insert" else b"" if kind == "cut" else data[at + count :]
    return data[:at] + middle + after


@settings(max_examples=100, deadline=None)
@given(damages())
@example([(FILE, "cut", 0.0, 1), (FILE, "zeros", 0.0, 1)])  # SQLite takes what is left for a new file
@example([(FILE, "flip", 0.1328125, 7), (f"{FILE}-wal", "flip", 0.5, 1)])  # a column has another name
@example([(FILE, "flip", 0.140625, 7), (f"{FILE}-wal", "flip", 0.0, 1)])  # the schema is no UTF-8
def test_a_damaged_ledger_is_an_error_or_holds_every_payment(whole, tmp_path_factory, found):
    check(whole, tmp_path_factory.mktemp("damaged"), found)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(damages())
def test_many_damaged_ledgers(whole, tmp_path_factory, found):
    check(whole, tmp_path_factory.mktemp("damaged"), found)


def check(whole: Path, folder: Path, found: list[tuple[str, str, float, int]]) -> None:
    """Damage a copy of a ledger: it opens with every payment, or is an error that says what to do."""
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    for name, *how in found:
        path = folder / name
        path.write_bytes(damage(path.read_bytes(), *how))
    is_log = any(name != FILE for name, *_ in found)
    try:
        with ledger_in(folder) as ledger:
            held = [ledger.find(f"key {number}") for number in range(ANSWERS)]
            dollars, calls = ledger.total
    except UserError as error:
        assert FILE in str(error) and "Put back a copy" in str(error)
    else:
        if not is_log:  # what is missing from the log cannot be known
            assert all(call is not None and call.reply is not None for call in held)
            assert dollars >= 0.5 * ANSWERS and calls >= ANSWERS
    try:
        rows(folder)
    except UserError as error:
        assert FILE in str(error)
    shutil.rmtree(folder)


def test_what_a_damaged_ledger_holds_is_not_taken_over(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "old")
    with closing(sqlite3.connect(tmp_path / "old" / FILE)) as database:
        database.execute("ALTER TABLE call RENAME COLUMN body TO bodx")
    with ledger_in(tmp_path / "new") as ledger, pytest.raises(UserError, match="old/ledger.sqlite is damaged"):
        take_over(ledger.database, ".", tmp_path / "old")


def test_a_full_disk_is_no_damage_of_the_ledger_that_is_taken_over(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "old")
    with ledger_in(tmp_path / "new") as ledger:
        ledger.database.execute("PRAGMA max_page_count = 1")
        with pytest.raises(sqlite3.OperationalError, match="disk is full"):
            take_over(ledger.database, ".", tmp_path / "old")
