"""Arrays that all processes of a run make together, in memory or in a memory-mapped file.

A file gets its name only when it is complete. A killed process leaves a draft: a hidden file that is never read.
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

from repair_hf.runtime.files import read_array
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes

logger = logging.getLogger(__name__)

Parts = Iterable[tuple[np.ndarray | slice, np.ndarray]]  # which rows, and their values


def in_memory(shape: tuple[int, ...], dtype: Any, parts: Parts) -> np.ndarray:
    """Return an array of the rows of all processes. Every process must call it with the rows of its own share."""
    everyone = processes()
    array = np.empty(shape, dtype)
    for rows, values in parts if everyone.count == 1 else chain(*everyone.gather(list(parts))):
        array[rows] = values
    return array


def on_disk(path: Path, shape: tuple[int, ...], dtype: Any, parts: Callable[[], Parts]) -> np.ndarray:
    """Return a read-only, memory-mapped array, and write its `.npy` file unless it exists. Every process must call it.

    `parts` makes the rows of this process's share.

    Raises:
        UserError: If the disk has too little free space, or an existing file is damaged.
    """
    everyone = processes()
    if not everyone.gather(path.is_file())[0]:  # as the first process sees it
        size = prod(shape) * np.dtype(dtype).itemsize
        with _draft(path, size) as draft:
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
    return read_array(path, shape=shape, dtype=dtype, remedy="Delete it, and run the same command again")


@contextmanager
def _draft(path: Path, size: int) -> Iterator[Path]:
    """Give the temporary path of a file, the same in all processes, after a check of the disk's free space."""
    everyone = processes()
    path.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(path.parent).free
    if free < size:  # writing to a mapped file would kill the process without a word
        raise UserError(
            f"{path.name} needs {size / 1e9:,.1f} GB, and {path.parent} has {free / 1e9:,.1f} GB free. Free some "
            "space, or set HF_ASSETS_CACHE to another folder."
        )
    name = f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    draft = path.with_name(everyone.gather(name)[0])
    try:
        yield draft
    finally:
        if everyone.is_main:
            draft.unlink(missing_ok=True)
