"""Processes that make images for others: one with nothing else to do helps all runs beside its own.

A helper opens an inbox, a folder in `.helpers` beside the folders of the runs, and locks it while it lives. A run that
edits with the same editor puts each edit into one inbox, or makes it itself, so that no image is made twice. What a
helper left undone when it ended, killed or not, goes back to the run.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import filelock

from repair_hf.runtime.locks import LOCK
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.synthesis.edit_jobs import Job, edit_and_save, pack, unpack
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.sources import UnreadableImage

HELPERS = ".helpers"  # the folder of all inboxes
EDITOR = "editor.txt"  # in an inbox: id of the helper's editor
POLL = 0.1  # seconds


def helpers_of(run: Path) -> Path:
    """Return the folder of the inboxes that a run may use."""
    return run.parent / HELPERS


def help_out(helpers: Path, editor: ImageEditor, until: Callable[[], bool]) -> None:
    """Make images for others until `until` returns True. It is called between two edits."""
    inbox = helpers / secrets.token_hex(8)
    inbox.mkdir(parents=True)
    try:
        with filelock.FileLock(inbox / LOCK):
            write_atomically(inbox / EDITOR, editor.id)
            while not until():
                if not _make_next(inbox, editor):
                    time.sleep(POLL)
            (inbox / EDITOR).unlink()
            while _make_next(inbox, editor):
                pass
    finally:
        shutil.rmtree(inbox, ignore_errors=True)


def inboxes(helpers: Path, editor: str) -> list[Path]:
    """Return the inboxes of all helpers with an editor."""
    return [path.parent for path in helpers.glob(f"*/{EDITOR}") if _read(path) == editor.encode()]


def is_alive(inbox: Path) -> bool:
    """Return whether the helper of an inbox lives; what a killed one left is deleted."""
    try:
        with filelock.FileLock(inbox / LOCK, blocking=False):
            shutil.rmtree(inbox, ignore_errors=True)
        return False
    except filelock.Timeout:
        return True


async def make_elsewhere(inbox: Path, jobs: Sequence[Job]) -> bool:
    """Let a helper make some images; False if it could not, or ended first."""
    file = inbox / f"{time.time_ns()}-{secrets.token_hex(4)}.job"
    try:
        await asyncio.to_thread(write_atomically, file, pack(jobs, inbox))
    except FileNotFoundError:
        return False
    while file.is_file() and is_alive(inbox):
        await asyncio.sleep(POLL)
    return all(job.is_done for job in jobs)


def _make_next(inbox: Path, editor: ImageEditor) -> bool:
    """Make the images of the first edits in an inbox; False if there are none."""
    if not (left := sorted(inbox.glob("*.job"))):
        return False
    with suppress(UnreadableImage):  # the run will find out by itself
        edit_and_save(editor, unpack(left[0].read_bytes(), inbox))
    left[0].unlink()
    return True


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # the helper has just ended
        return b""
