"""Arrays on disk: made once, by all processes of a run together, and mapped into memory by whoever reads them.

In:  what an array holds, some rows at a time; each process makes its own share of them.
Out: a read-only array in place of which the system keeps in memory what is being read.

A file has its name only when it is whole. What a killed process leaves is a draft: a hidden file that nobody takes.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes

logger = logging.getLogger(__name__)

UNITS = {"GB": 10**9, "MB": 10**6}

Rows = np.ndarray | slice
Parts = Iterable[tuple[Rows, np.ndarray]]  # which rows, and what they hold


def in_memory(shape: tuple[int, ...], dtype: Any, parts: Parts) -> np.ndarray:
    """An array of what all processes make. All of them must call it, each with the rows of its own share."""
    everyone = processes()
    found = np.empty(shape, dtype)
    for rows, values in parts if everyone.count == 1 else chain(*everyone.gather(list(parts))):
        found[rows] = values
    return found


def on_disk(
    path: Path, shape: tuple[int, ...], dtype: Any, parts: Callable[[], Parts], *, what: str, remedy: str
) -> np.ndarray:
    """The same in a file, which is taken as it is where it exists. All processes must call it.

    Args:
        path: A `.npy` whose name says all that decides what it holds; its folder is made.
        shape: Of the whole array.
        dtype: Of its numbers.
        parts: Makes the rows of this process's share; called if there is no such file.
        what: Of what it is, for the log and for an error.
        remedy: What to do where the disk is too small.

    Raises:
        UserError: If the disk has not the room.
    """
    everyone = processes()
    if not everyone.gather(path.is_file())[0]:  # as the first one sees it
        size = prod(shape) * np.dtype(dtype).itemsize
        if everyone.is_main:
            logger.info("%s go into %s: %s.", what, path, _told(size))
        with _draft(path, size, what, remedy) as draft:
            if everyone.is_main:
                np.lib.format.open_memmap(draft, "w+", dtype, shape)
            everyone.gather(None)
            mapped = np.lib.format.open_memmap(draft, "r+")
            for rows, values in parts():
                mapped[rows] = values
            mapped.flush()
            everyone.gather(None)
            if everyone.is_main:
                draft.replace(path)
            everyone.gather(None)
    return np.load(path, mmap_mode="r")


@contextmanager
def _draft(path: Path, size: int, what: str, remedy: str) -> Iterator[Path]:
    """Where the file lies until it is whole; the same for all processes."""
    everyone = processes()
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < size:
        raise UserError(f"{what} need {_told(size)}, and {path.parent} has {_told(free)} free; {remedy}.")
    name = f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    draft = path.with_name(everyone.gather(name)[0])
    try:
        yield draft
    finally:
        if everyone.is_main:
            draft.unlink(missing_ok=True)


def _told(size: int) -> str:
    return next((f"{size / unit:,.1f} {name}" for name, unit in UNITS.items() if size >= unit), f"{size} bytes")
