"""Candidate images on disk: each is made once, whatever happens to the run.

In:  a false-positive image (a row of the pairs), an edit instruction.
Out: the files of its M candidates. A file is named by what it was made from (editor, source, instruction, seed) and written under
     another name first: where it exists it is whole and right. What is already there is not made again.

Images wait in a queue and go to the editor in batches, outside the event loop: an editor that only needs a CPU core in a process of its
own, a model in a thread.
"""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import os
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from repair_hf.runs import RunStopped, digest, write_atomically
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.sources import SourceImages, open_picture


class Candidates:
    """Makes and keeps the candidate images of a run.

    Args:
        editor: Who edits.
        sources: The pairs' images.
        folder: Where the files go.
        count: M.
        seed: Fixes the editor's draws.
    """

    def __init__(self, editor: ImageEditor, sources: SourceImages, folder: Path, *, count: int, seed: int) -> None:
        self.editor, self.sources, self.folder, self.count, self.seed = editor, sources, folder, count, seed
        self._batch_size = editor.batch_size  # here, so that an editor without one fails before anything waits for it
        self.made, self.found = 0, 0
        self._made: dict[tuple[int, str], asyncio.Task[list[Path | None]]] = {}
        self._waiting: asyncio.Queue[tuple[_Job, asyncio.Future]] = asyncio.Queue()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """While this is open, `make` works. Leaving it waits for the batch in work, then stops the editor."""
        executor = _executor(self.editor)
        # two, so that the next batch waits at the editor's door
        servers = [asyncio.create_task(self._serve(executor)) for _ in range(2)]
        try:
            yield
        finally:
            for server in servers:
                server.cancel()
            await asyncio.gather(*servers, return_exceptions=True)
            executor.shutdown(cancel_futures=True)

    async def make(self, fp: int, instruction: str) -> list[Path | None]:
        """The files of the M candidates; None where the editor gave no image. Equal wishes are one piece of work.

        Raises:
            UnreadableImage: If the source cannot be opened.
        """
        wish = (fp, instruction)
        if wish not in self._made:
            self._made[wish] = asyncio.create_task(self._make(fp, instruction))
        return await self._made[wish]

    async def _make(self, fp: int, instruction: str) -> list[Path | None]:
        wanted = {
            "editor": self.editor.id,
            "source": self.sources.digest(fp),
            "instruction": instruction,
            "seed": self.seed,
        }
        names = [digest(wanted | {"candidate": m}) for m in range(self.count)]
        paths = [self.folder / name[:2] / f"{name}.png" for name in names]
        missing = [m for m, path in enumerate(paths) if not path.is_file()]
        self.found += self.count - len(missing)
        if missing:
            seeds = tuple(int(names[m][:8], 16) for m in missing)
            job = _Job(self.sources.file(fp), instruction, seeds, tuple(paths[m] for m in missing))
            done = asyncio.get_running_loop().create_future()
            await self._waiting.put((job, done))
            for m, is_made in zip(missing, await done, strict=True):
                self.made += is_made
                paths[m] = paths[m] if is_made else None
        return paths

    async def _serve(self, executor: Executor) -> None:
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < self._batch_size and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            jobs = [job for job, _ in batch]
            try:
                results = await asyncio.get_running_loop().run_in_executor(executor, _edit_and_save, self.editor, jobs)
            except Exception as error:  # whatever it is, those who wait must not wait for ever; it ends the run
                for _, done in batch:
                    if not done.done():
                        done.set_exception(_explain(error))
                continue
            for (_, done), result in zip(batch, results, strict=True):
                if not done.done():  # its failure may have been called off meanwhile
                    done.set_result(result)


@dataclass(frozen=True)
class _Job:
    source: bytes  # an image file
    instruction: str
    seeds: tuple[int, ...]  # (S,)
    paths: tuple[Path, ...]  # (S,)


def _edit_and_save(editor: ImageEditor, jobs: list[_Job]) -> list[list[bool]]:
    """Edit a batch and write what came out. Runs beside the event loop.

    Returns:
        For each job and each of its seeds: whether there is an image.
    """
    edited = editor.edit(
        [open_picture(job.source) for job in jobs],
        [job.instruction for job in jobs],
        [list(job.seeds) for job in jobs],
    )
    for job, images in zip(jobs, edited, strict=True):
        for path, image in zip(job.paths, images, strict=True):
            if image is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, _png(image))
    return [[image is not None for image in images] for images in edited]


def _png(image: Image.Image) -> bytes:
    """Lossless, with the texts that the editor noted in `image.info`."""
    notes = PngInfo()
    for key, value in image.info.items():
        if isinstance(value, str):
            notes.add_itxt(key, value)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", pnginfo=notes, compress_level=3)  # a third of the time of level 6, 5% more bytes
    return buffer.getvalue()


def _explain(error: Exception) -> Exception:
    if not isinstance(error, BrokenProcessPool):
        return error
    return RunStopped(
        "The image editor's process ended: killed, out of memory, or not able to start because the calling script lacks "
        "`if __name__ == '__main__':`. The same command goes on from here."
    )


def _executor(editor: ImageEditor) -> Executor:
    if not editor.own_process:
        return ThreadPoolExecutor(1, thread_name_prefix="image-editor")
    # not forked: a copy of a process with threads can hang
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_follow_parent)


def _follow_parent() -> None:
    """In the editor's process: leave Ctrl-C to the parent, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def leave() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()
