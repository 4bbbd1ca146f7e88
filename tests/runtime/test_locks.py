"""One writer per folder, between real processes: a lock ends with its process, and nothing of a dead one stays."""

from __future__ import annotations

import subprocess
import sys

import pytest

from repair_hf.runtime.locks import LOCK, one_writer
from repair_hf.runtime.options import UserError

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
