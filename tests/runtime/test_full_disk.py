"""A disk that is full, or a limit on files: one line, and with more space the same command goes on."""

from __future__ import annotations

import resource
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
import torch
from children import Child
from safetensors.torch import save_file

from repair_hf.cli.main import COMMANDS, main

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


def cook(writer: str, folder: Path) -> int:
    """Run a command that writes more than it may."""
    COMMANDS["cook"] = "Cook."
    run = lambda: WRITERS[writer](folder)  # noqa: E731
    sys.modules["repair_hf.cli.cook"] = SimpleNamespace(OPTIONS=(), EPILOG="", run=run)
    if not writer.endswith("full"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, 64 * 1024))
    return main(["cook"])


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_ends_in_one_line(writer, tmp_path):
    child = Child(cook, writer, tmp_path)
    assert child.wait() == 1, child.said()
    said = child.said().strip()
    assert said.startswith("repair-hf cook: error: nothing more can be written (") and "\n" not in said, said
    assert said.endswith("). Free some space; the same command resumes from here.")
