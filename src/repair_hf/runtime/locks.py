"""One writer per folder: a lock that the system releases when its process ends, killed or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
    """Make and lock a folder for one run, of whose processes the first holds the lock.

    Raises:
        UserError: If another run holds the folder.
    """
    if not is_first():
        yield
        return
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with take(folder / LOCK, folder):
        yield
