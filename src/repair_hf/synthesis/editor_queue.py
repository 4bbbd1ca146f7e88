"""Edit images with an editor on this machine, in batches, outside the event loop.

An editor that only needs a CPU core runs in a process of its own; a model runs in a thread. Processes that help
(`helpers`) take batches too.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repair_hf.pairs.images import UNDECODABLE, open_image
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.synthesis.edit_jobs import Job, edit_and_save
from repair_hf.synthesis.helpers import inboxes, is_alive, make_elsewhere
from repair_hf.synthesis.images import ImageEditor, fit

SCOUT = 1.0  # seconds between two looks for helpers
SHAPE_SIDE = 256  # images that fit a square of this area at equal size have one shape, and may share a batch


class EditorQueue:
    """Collect edits of images of one shape into batches for an editor."""

    def __init__(self, editor: ImageEditor, helpers: Path) -> None:
        self.editor, self.batch_size, self.helpers = editor, editor.batch_size, helpers
        self._waiting: list[_Edit] = []
        self._has_work = asyncio.Event()  # set while edits wait

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Run the editor while this is open."""
        executor = start_executor(self.editor)
        # two, so that the next batch is ready when the editor is
        servers = [asyncio.create_task(self._serve(executor)) for _ in range(2)]
        scout = asyncio.create_task(self._scout(executor, servers))
        try:
            yield
        finally:
            for server in [scout, *servers]:
                server.cancel()
            await asyncio.gather(scout, *servers, return_exceptions=True)
            executor.shutdown(cancel_futures=True)

    async def edit(self, source: bytes, instruction: str, paths: list[Path]) -> None:
        """Edit an image once per path, and write the results there. A path's name gives the seed."""
        shape = _shape(source) if self.batch_size > 1 else None
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(_Edit(Job(source, instruction, tuple(paths)), shape, done))
        self._has_work.set()
        if (failure := await done) is not None:
            raise failure

    async def _scout(self, executor: Executor, servers: list[asyncio.Task[None]]) -> None:
        """Let each helper serve, too."""
        known: set[Path] = set()
        while True:
            new = set(inboxes(self.helpers, self.editor.id)) - known
            servers += [asyncio.create_task(self._serve(executor, inbox)) for inbox in sorted(new) for _ in range(2)]
            known |= new
            await asyncio.sleep(SCOUT)

    async def _serve(self, executor: Executor, inbox: Path | None = None) -> None:
        """Edit batches here, or with a helper as long as it lives."""
        while inbox is None or is_alive(inbox):
            batch = await self._next_batch()
            jobs = [edit.job for edit in batch]
            failure: Exception | None = None
            try:
                if inbox is None or not await make_elsewhere(inbox, jobs):
                    await asyncio.get_running_loop().run_in_executor(executor, edit_and_save, self.editor, jobs)
            except BrokenProcessPool:
                failure = RunStopped(
                    "The image editor's process ended: killed, out of memory, or unable to start because the calling "
                    "script lacks `if __name__ == '__main__':`. The same command continues from here."
                )
            except Exception as error:  # any error ends the run; those who wait must learn of it
                failure = error
            for edit in batch:
                if not edit.done.done():  # it may have been cancelled meanwhile
                    edit.done.set_result(failure)

    async def _next_batch(self) -> list[_Edit]:
        """The edit that waits longest, with others of the same shape."""
        while not self._waiting:
            self._has_work.clear()
            await self._has_work.wait()
        first = self._waiting[0]
        batch = [edit for edit in self._waiting if edit.shape == first.shape][: self.batch_size]
        self._waiting = [edit for edit in self._waiting if edit not in batch]
        return batch


@dataclass(frozen=True, eq=False)
class _Edit:
    job: Job
    shape: tuple[int, int] | None
    done: asyncio.Future[Exception | None]  # what went wrong, if anything


def start_executor(editor: ImageEditor) -> Executor:
    """Start the process or the thread in which an editor works."""
    if not editor.own_process:
        return ThreadPoolExecutor(1, thread_name_prefix="image-editor")
    # Python's tracker of semaphores frees those of a killed process, and would warn of them; it inherits this option.
    if (quiet := "ignore:resource_tracker:UserWarning") not in sys.warnoptions:
        sys.warnoptions.append(quiet)
    # A copy of a process that has only imported this module: a copy of this process would lack its threads.
    can_fork = "forkserver" in multiprocessing.get_all_start_methods()  # not on Windows
    context = multiprocessing.get_context("forkserver" if can_fork else "spawn")
    if can_fork:
        context.set_forkserver_preload([__name__])  # later syntheses of this process do not wait for the import
    return ProcessPoolExecutor(1, mp_context=context, initializer=_follow_parent)


def _shape(source: bytes) -> tuple[int, int] | None:
    """Which images can be edited together, read from the head of the file."""
    try:
        with open_image(source) as image:
            return fit(image.size, SHAPE_SIDE)
    except UNDECODABLE:
        return None


def _follow_parent() -> None:
    """In the editor's process: leave Ctrl-C to the parent, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent: Any = multiprocessing.parent_process()

    def leave() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()
