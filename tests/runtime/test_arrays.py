"""Arrays on disk: whole or not there, no larger than the disk, and read without being loaded."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from repair_hf.runtime.arrays import in_memory, on_disk
from repair_hf.runtime.options import UserError

WORDS = {"what": "The squares", "remedy": "take fewer"}


def parts():
    yield slice(2, 4), np.array([[4], [9]])
    yield np.array([1, 0]), np.array([[1], [0]])


def test_rows_come_in_any_order_and_stay():
    assert in_memory((4, 1), np.float32, parts()).tolist() == [[0], [1], [4], [9]]


def test_a_file_is_made_once_and_mapped(tmp_path):
    path, calls = tmp_path / "new" / "squares.npy", []

    def counted():
        calls.append(1)
        return parts()

    for _ in range(2):
        found = on_disk(path, (4, 1), np.float32, counted, **WORDS)
        assert isinstance(found, np.memmap) and not found.flags.writeable
        assert found.tolist() == [[0], [1], [4], [9]]
    assert len(calls) == 1
    assert [file.name for file in path.parent.iterdir()] == ["squares.npy"]


def test_what_fails_or_has_too_little_room_leaves_nothing(tmp_path):
    def broken():
        yield slice(0, 1), np.zeros((1, 1))
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        on_disk(tmp_path / "squares.npy", (4, 1), np.float32, broken, **WORDS)
    with pytest.raises(UserError, match=r"The squares need 4,000,000,000\.0 GB, and .* GB free; take fewer\."):
        on_disk(tmp_path / "squares.npy", (10**18, 1), np.float32, parts, **WORDS)
    assert not list(tmp_path.iterdir())


def test_a_killed_writer_leaves_a_draft_that_nobody_takes(tmp_path):
    script = """
import os, signal, sys
from pathlib import Path
import numpy as np
from repair_hf.runtime.arrays import on_disk

def parts():
    yield slice(0, 3), np.full((3, 1), 7)
    os.kill(os.getpid(), signal.SIGKILL)

on_disk(Path(sys.argv[1]), (4, 1), np.float32, parts, what="", remedy="")
"""
    path = tmp_path / "squares.npy"
    done = subprocess.run([sys.executable, "-c", script, str(path)], env=os.environ, check=False)
    assert done.returncode == -9
    assert [file.suffix for file in tmp_path.iterdir()] == [".tmp"]
    assert on_disk(path, (4, 1), np.float32, parts, **WORDS).tolist() == [[0], [1], [4], [9]]


def test_what_is_mapped_is_not_resident(tmp_path):
    resident = "next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('RssAnon'))"
    if not Path("/proc/self/status").is_file():
        pytest.skip("needs /proc, to see what a process holds")
    script = f"""
import sys
from pathlib import Path
import numpy as np
from repair_hf.runtime.processes import processes
from repair_hf.runtime.arrays import on_disk

processes()
ones = np.ones((1000, 512), np.float32)
before = {resident}
parts = lambda: ((slice(start, start + 1000), ones) for start in range(0, 100_000, 1000))
found = on_disk(Path(sys.argv[1]), (100_000, 512), np.float32, parts, what="", remedy="")
assert found[::1000].sum() == 100 * 512
print({resident} - before)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "x.npy")], capture_output=True, text=True)
    assert int(done.stdout) < 20_000, done.stderr  # KiB, of 200,000
