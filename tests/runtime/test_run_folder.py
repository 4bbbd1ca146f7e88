"""Files of a folder: whole or not there, digests, one writer at a time, and a disk that gets full."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from repair_hf.cli.main import COMMANDS, main
from repair_hf.runtime.locks import LOCK, one_writer
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest, versions, write_atomically


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "table.json"
    write_atomically(path, "old")

    def fail(self, target):
        raise OSError("disk gone")

    with monkeypatch.context() as patched, pytest.raises(OSError, match="disk gone"):
        patched.setattr(Path, "replace", fail)
        write_atomically(path, "new")
    assert path.read_text() == "old"
    write_atomically(path, b"\x00new")
    assert path.read_bytes() == b"\x00new"
    assert os.listdir(tmp_path) == ["table.json"]


def test_a_digest_depends_on_content_alone():
    @dataclass
    class Point:
        x: int = 1

    name = digest({"a": [1, 2], "b": Path("c"), "d": Point(), "e": np.float64(0.5), "f": {"y", "x"}})
    assert name == digest({"f": {"x", "y"}, "e": 0.5, "d": {"x": 1}, "b": "c", "a": (1, 2)})
    assert len(name) == 16 and set(name) <= set("0123456789abcdef")
    assert digest("é") != digest("e") and digest(1) != digest("1") and digest([]) != digest({})
    for value, error in ((object(), TypeError), (float("nan"), ValueError)):
        with pytest.raises(error):
            digest([value])


def test_the_commit_is_that_of_this_repository():
    here = Path(__file__).parents[2]
    tracked = subprocess.run(
        ["git", "-C", here, "ls-files", "--error-unmatch", "src/repair_hf/__init__.py"], capture_output=True
    )
    head = subprocess.run(["git", "-C", here, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    commit = versions()["commit"]
    assert commit is None if tracked.returncode else commit.removesuffix("+changes") == head


HOLD = """
import os, sys, time
from pathlib import Path
from repair_hf.runtime.locks import one_writer
with one_writer(sys.argv[1]):
    ready, begun = os.pipe()
    if os.fork() == 0:  # a worker that outlives it
        os.write(begun, b"1")
        os.close(0), os.close(1), os.close(2)
        time.sleep(600)
        os._exit(0)
    os.read(ready, 1)
    print(flush=True)
    time.sleep(600)
"""


@pytest.fixture
def start():
    """Start another process that holds a folder."""
    started = []

    def hold(folder: str) -> subprocess.Popen:
        words = [sys.executable, "-c", HOLD, folder]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True))
        started[-1].stdout.readline()
        return started[-1]

    yield hold
    for each in started:
        subprocess.run(["pkill", "-KILL", "-s", str(each.pid)])  # the session of this process and its worker
        each.communicate()


def test_a_lock_ends_with_its_process_even_if_a_worker_lives_on(start, tmp_path):
    folder = tmp_path / "runs" / "train"
    holder = start(str(folder))
    with pytest.raises(UserError, match=f"{folder} is in use by another run; wait"), one_writer(folder):
        pass
    holder.kill()
    holder.wait()
    with one_writer(folder):
        (folder / "result").touch()
    assert {path.name for path in folder.iterdir()} == {"result", LOCK}


def test_only_the_first_process_of_a_run_takes_the_lock(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with one_writer(tmp_path / "alone"):  # a cluster may set this for a process that no launcher started
        assert (tmp_path / "alone" / LOCK).is_file()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with one_writer(tmp_path / "runs"):
        assert not (tmp_path / "runs").exists()


FULL = Path("/dev/full")  # every write fails, as on a full disk


def with_sqlite(folder: Path) -> None:
    base = sqlite3.connect(folder / "l.sqlite")
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("CREATE TABLE t (x BLOB)")
    base.execute("INSERT INTO t VALUES (zeroblob(1000000))")
    base.commit()


def with_arrow(folder: Path) -> None:
    table = pa.table({"x": [b"0" * 1_000_000]})
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)


WEIGHTS = {"weights": torch.zeros(250_000)}
WRITERS = {
    "python": lambda folder: (folder / "file").write_bytes(bytes(1_000_000)),
    "torch": lambda folder: torch.save(WEIGHTS, folder / "file"),
    "safetensors": lambda folder: save_file(WEIGHTS, folder / "file"),
    "sqlite": with_sqlite,
    "arrow": with_arrow,
    "python, full": lambda folder: FULL.write_bytes(b"data"),
    "torch, full": lambda folder: torch.save(WEIGHTS, FULL),
}


@contextmanager
def small_files() -> Iterator[None]:
    """Let this process write files of 64 KiB at most."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_ends_in_one_line(writer, tmp_path, monkeypatch, capfd):
    """A command that writes more than it may."""
    command = SimpleNamespace(OPTIONS=(), EPILOG="", run=lambda: WRITERS[writer](tmp_path))
    monkeypatch.setitem(COMMANDS, "cook", "Cook.")
    monkeypatch.setitem(sys.modules, "repair_hf.cli.cook", command)
    with nullcontext() if writer.endswith("full") else small_files():
        assert main(["cook"]) == 1
    said = "".join(capfd.readouterr()).strip()
    assert said.startswith("repair-hf cook: error: nothing more can be written (") and "\n" not in said, said
    assert said.endswith("). Free some space; the same command resumes from here.")
