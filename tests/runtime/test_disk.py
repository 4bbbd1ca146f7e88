"""What a full disk raises, whoever writes, becomes one line with the folder and the space needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from repair_hf.runtime.disk import DiskFull, check_room, naming_full_disk

FULL = Path("/dev/full")  # every write fails, as on a full disk
WRITERS = [lambda: torch.save({"a": torch.zeros(100_000)}, FULL), lambda: FULL.write_bytes(b"data")]


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("write", WRITERS, ids=["torch", "python"])
def test_every_writer_is_understood(write, tmp_path):
    with (
        pytest.raises(DiskFull, match=rf"{tmp_path}: its disk is full. At least 8.0 MB are needed, and .* are free"),
        naming_full_disk(tmp_path, lambda: 8_000_000),
    ):
        write()


def test_other_errors_pass_and_too_little_room_is_said_before(tmp_path):
    with pytest.raises(RuntimeError, match="^boom$"), naming_full_disk(tmp_path, lambda: 1):
        raise RuntimeError("boom")
    words = "Error while serializing: I/O error: No space left on device (os error 28)"  # of safetensors
    with pytest.raises(DiskFull), naming_full_disk(tmp_path, lambda: 1):
        raise RuntimeError(words)
    with pytest.raises(DiskFull, match=r"new/deep: its disk is full. At least 1,000,000,000.0 GB"):
        check_room(tmp_path / "new" / "deep", 10**18)
    check_room(tmp_path / "new", 1)


LIMITED = """
import resource, sqlite3, sys
import pyarrow as pa
from repair_hf.runtime.disk import naming_full_disk
from repair_hf.runtime.run_folder import RunStopped
folder, writer = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))
try:
    with naming_full_disk(folder, lambda: 1000):
        if writer == "sqlite":
            base = sqlite3.connect(folder + "/l.sqlite")
            base.execute("PRAGMA journal_mode=WAL")
            base.execute("CREATE TABLE t (x BLOB)")
            base.execute("INSERT INTO t VALUES (zeroblob(1000000))")
            base.commit()
        elif writer == "arrow":
            table = pa.table({"x": [b"0" * 1_000_000]})
            with pa.OSFile(folder + "/a.arrow", "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table)
        else:
            open(folder + "/p", "wb").write(bytes(1_000_000))
except RunStopped as error:
    print(error)
"""


@pytest.mark.parametrize("writer", ["sqlite", "arrow", "python"])
def test_a_limit_on_the_size_of_files_is_understood(writer, tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path), writer]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.stdout.startswith(f"{tmp_path}: no more can be written: a quota or `ulimit -f` is reached."), said
    assert said.stdout.count("\n") == 1 and not said.stderr
