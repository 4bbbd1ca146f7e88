"""Temporary folders that do not outlive their process for good: the next one deletes what a killed process left."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

from repair_hf.runtime.locks import LOCK, take
from repair_hf.runtime.options import UserError

PREFIX = "repair-hf-scratch-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Create a temporary folder, and delete it at the end. Folders of dead processes are deleted first."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _delete_unless_used(left)
    folder, lock = _new()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def _new() -> tuple[Path, filelock.BaseFileLock]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        with suppress(UserError):  # another process is just about to delete it
            return folder, take(folder / LOCK, folder)


def _delete_unless_used(folder: Path) -> None:
    with suppress(UserError, OSError):  # in use, or another user's
        lock = take(folder / LOCK, folder)
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
