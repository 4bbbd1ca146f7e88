"""One writer per folder: a lock that the system releases when its process ends, killed or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import is_first

LOCK = ".lock"  # in a folder that is written to; what a killed run left there locks nothing


def take(file: str | Path, what: str | Path) -> filelock.BaseFileLock:
    """Lock a file without waiting; the error names `what`, which the lock protects.

    Raises:
        UserError: If another run holds the lock.
    """
    lock = filelock.FileLock(file, blocking=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise UserError(f"{what} is in use by another run; wait for it to end, or give another folder.") from error
    return lock


@contextmanager
def one_writer(folder: str | Path) -> Iterator[None]:
    """Lock a folder for one run, of whose processes the first holds the lock.

    The folder is created, and deleted at the end if nothing was written. One that cannot be written to is not locked:
    a finished result there can be read, and who writes gets the error of the system.

    Raises:
        UserError: If another run holds the folder.
    """
    folder = Path(folder)
    if not is_first():
        yield
        return
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    lock = _lock(folder)
    try:
        yield
    finally:
        if lock is not None:
            with suppress(OSError):  # the file is deleted while it is locked: who waits for it looks for a new one
                (folder / LOCK).unlink()
            lock.release()
        with suppress(OSError):  # not empty
            for each in new:
                each.rmdir()


def _lock(folder: Path) -> filelock.BaseFileLock | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return take(folder / LOCK, folder)
    except OSError:
        if folder.is_dir() and os.access(folder, os.W_OK):
            raise
        return None
