from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from repair_hf.llm.journal import Entry, Journal, open_journal, read_entries, request_key
from repair_hf.runtime.disk import DiskFull
from repair_hf.runtime.options import UserError

ENTRY = Entry(
    key="k0",
    text="a line\nand another \u2028 with an emoji \U0001f600",
    finish="stop",
    prompt_tokens=700,
    completion_tokens=80,
    dollars=0.0004,
    stage="audit",
    direction="i2t",
    model="gemini/gemini-2.5-flash",
    answered_by="gemini-2.5-flash-001",
)


@pytest.fixture
def path(tmp_path):
    """A journal of three answers."""
    path = tmp_path / "deep" / "journal.jsonl"
    with Journal(path) as journal:
        for k in range(3):
            journal.put(ENTRY._replace(key=f"k{k}"))
    return path


def keys(path) -> list[str]:
    return [entry.key for entry in read_entries([path])]


def test_gives_back_what_was_put(path):
    with Journal(path) as journal:
        assert journal.get("k0") == ENTRY and journal.get("unknown") is None
        assert journal.calls == 3
    assert keys(path) == ["k0", "k1", "k2"] and len(path.read_bytes().splitlines()) == 3


@pytest.mark.parametrize("kept", [1, 40, -2])
def test_torn_last_line_is_cut_off(path, kept):
    whole = path.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    path.write_bytes(whole.removesuffix(last) + last[:kept])
    with Journal(path) as journal:
        assert journal.get("k2") is None and journal.get("k1") is not None
        journal.put(ENTRY._replace(key="k2"))
        assert journal.get("k2") == ENTRY._replace(key="k2")
    assert path.read_bytes() == whole


def test_last_line_that_lacks_only_its_break_is_kept(path, caplog):
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with Journal(path) as journal:
        assert journal.get("k2") is not None
        journal.put(ENTRY._replace(key="k3"))
    assert path.read_bytes().startswith(whole) and len(path.read_bytes().splitlines()) == 4 and not caplog.text


def test_foreign_lines_are_left_alone(path, caplog):
    whole = path.read_bytes()
    path.write_bytes(b'\n{"key": "k9"}\n[1]\nnot JSON\n\xff\xfe\n' + whole)
    with Journal(path) as journal:
        assert journal.calls == 3 and journal.get("k9") is None and journal.get("k0") == ENTRY
    assert "5 lines are not valid entries" in caplog.text
    assert path.read_bytes().endswith(whole)


def test_two_runs_at_once_are_refused(path):
    with Journal(path) as first, pytest.raises(UserError, match="in use by another run"):
        Journal(path)
    Journal(path).close()
    assert first.path == path  # still alive: it was closing it that let the journal go


@pytest.mark.parametrize(("first", "second"), [(1, 2), (3, 1)])
def test_processes_of_one_run_share_its_folder_and_other_runs_are_refused(tmp_path, first, second):
    with open_journal(tmp_path, processes=first), pytest.raises(UserError, match="another run"):
        open_journal(tmp_path, processes=second)
    with open_journal(tmp_path, processes=2), open_journal(tmp_path, process=1, processes=2) as other:
        assert other.path.name == "journal-1.jsonl"


def test_choices_come_back(path):
    entry = ENTRY._replace(key="k3", others=(("a second", "stop"), ("a third", "length")))
    with Journal(path) as journal:
        journal.put(entry)
        assert journal.get("k3") == entry
    with Journal(path) as journal:
        assert journal.get("k3") == entry and journal.get("k0").others == ()


def test_a_line_from_before_there_were_choices_is_read(path):
    line = {name: value for name, value in ENTRY._asdict().items() if name != "others"}
    path.write_text(json.dumps(line) + "\n")
    with Journal(path) as journal:
        assert journal.get("k0") == ENTRY


@pytest.fixture
def shard(path):
    """What another process has written: one answer that it shares with `path`, and two more."""
    shard = path.with_name("journal-1.jsonl")
    with Journal(shard) as journal:
        for k in (2, 3, 4):
            journal.put(ENTRY._replace(key=f"k{k}", text="from the shard"))
    return shard


def test_shards_are_read_and_never_written(path, shard):
    torn = shard.read_bytes()[:-7]
    shard.write_bytes(torn)
    with Journal(path, also_read=[path, shard]) as journal:
        assert journal.get("k2") == ENTRY._replace(key="k2")  # the own one first
        assert journal.get("k3").text == "from the shard" and journal.get("k4") is None
        with pytest.raises(ValueError, match="already holds"):
            journal.put(ENTRY._replace(key="k3"))
        journal.put(ENTRY._replace(key="k4"))
    assert shard.read_bytes() == torn
    assert keys(path) == ["k0", "k1", "k2", "k4"]


def test_a_shard_may_be_read_while_its_process_writes_it(path, shard):
    with Journal(shard) as writing, Journal(path, also_read=[shard]) as journal:
        writing.put(ENTRY._replace(key="k5"))
        assert journal.get("k4") is not None and journal.get("k5") is None
        journal.read_anew([shard])
        assert journal.get("k5") is not None and journal.get("k0") == ENTRY
        journal.put(ENTRY._replace(key="k6"))
        assert journal.get("k6") is not None


def test_what_was_paid_is_counted_over_all_shards(path, shard):
    with Journal(path, also_read=[shard]) as journal:
        assert journal.calls == 6  # two processes paid for the same
        assert journal.dollars == pytest.approx(6 * 0.0004)
        journal.put(ENTRY._replace(key="k7", dollars=None))
        assert journal.calls == 7 and journal.dollars == pytest.approx(6 * 0.0004)
        journal.put(ENTRY._replace(key="k8", stage="edit", direction="t2i", dollars=0.04))  # an edited image
        assert journal.calls == 7 and journal.dollars == pytest.approx(6 * 0.0004 + 0.04)
        journal.read_anew([shard])
        assert journal.calls == 7 and journal.dollars == pytest.approx(6 * 0.0004 + 0.04)


WRITER = """
import sys
from repair_hf.llm.journal import Entry, Journal
journal = Journal(sys.argv[1])
for k in range(1_000_000):
    journal.put(Entry(f"key{k}", "word " * 5000, "stop", 1, 1, None, "audit", "i2t", "m", "m"))
    print(k, flush=True)
"""


def test_kill_loses_no_answer_that_was_put(tmp_path):
    path = tmp_path / "journal.jsonl"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    for line in writer.stdout:
        if int(line) == 50:
            break
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().splitlines()
    writer.wait()
    last = int(rest[-1]) if rest else 50
    with Journal(path) as journal:
        assert last + 1 <= journal.calls <= last + 2
    assert all(entry.text == "word " * 5000 for entry in read_entries([path]))


PICTURE = "data:image/png;base64," + "A" * 5000
REQUEST = {
    "model": "openai/m",
    "messages": [
        {"role": "system", "content": "Judge."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PICTURE}}]},
    ],
    "temperature": 0.0,
    "max_tokens": 1024,
    "seed": 5,
}


@pytest.mark.parametrize(
    "other",
    [
        {**REQUEST, "model": "openai/n"},
        {**REQUEST, "temperature": 0.1},
        {**REQUEST, "max_tokens": 1025},
        {**REQUEST, "seed": 6},
        {**REQUEST, "messages": REQUEST["messages"][:1]},
        {**REQUEST, "messages": REQUEST["messages"][::-1]},
        json.loads(json.dumps(REQUEST).replace('AAAAA"', 'AAAAB"')),
    ],
)
def test_key_names_the_request(other):
    assert request_key(other, 0) != request_key(REQUEST, 0)


def test_key_is_of_the_content_alone():
    shuffled = json.loads(json.dumps(dict(reversed(REQUEST.items()))))
    assert request_key(shuffled, 0) == request_key(REQUEST, 0) != request_key(REQUEST, 1)
    # This digest must not change, or paid answers are lost.
    assert request_key(REQUEST, 0) == "b80bbba44260c34217be4d67f8029850"


class _Full:
    """A file on a disk with room for half a line more, until `reserve` is given up."""

    def __init__(self, file, reserve) -> None:
        self.file, self.reserve = file, reserve

    def write(self, line: bytes) -> int:
        if not self.reserve.exists():
            return self.file.write(line)
        if len(line) < 200:  # the second half
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(line[: len(line) - 150])

    def __getattr__(self, name: str):
        return getattr(self.file, name)


def test_what_is_in_flight_still_fits_on_a_full_disk_and_nothing_more_is_asked(path):
    with Journal(path) as journal:
        journal._appender = _Full(journal._appender, journal.reserve.path)
        for key in ("k3", "k4"):
            with pytest.raises(DiskFull, match=r"disk is full. At least 4.2 MB are needed, and .* free.*same command"):
                journal.put(ENTRY._replace(key=key))
            assert journal.get(key) is not None
    assert keys(path) == [f"k{k}" for k in range(5)] and not journal.reserve.path.exists()


def test_a_reserve_that_does_not_fit_is_said_at_once(tmp_path):
    with (
        pytest.raises(DiskFull, match=re.escape(f"{tmp_path}: its disk is full")) as caught,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(Path, "write_bytes", lambda path, data: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        Journal(tmp_path / "journal.jsonl")
    with Journal(tmp_path / "journal.jsonl"):  # though the traceback lives
        assert caught.tb is not None
