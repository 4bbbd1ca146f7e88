"""Candidate images on disk: each is made once, whatever happens to the run.

In:  a false-positive image (a row of the pairs), an edit instruction.
Out: the files of its M candidates. A file is named by what it was made from (editor, source, instruction, seed) and written under
     another name first: where it exists it is whole and right. What is already there is not made again, nor is what the editor
     would not make: a file `.none` stands for that.

An editor of ours gets the images in batches, outside the event loop: in a process of its own if it only needs a CPU core, in a thread if
it is a model. One at a provider gets a request per candidate. Either way a candidate is written as it comes.
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
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from repair_hf.llm.budget import Budget
from repair_hf.llm.cost import Usage
from repair_hf.llm.journal import Entry, Journal, request_key
from repair_hf.llm.provider import Reply
from repair_hf.pairs.images import UNDECODABLE, open_image
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped, digest, write_atomically
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.images import ImageEditor, fit
from repair_hf.synthesis.sources import SourceImages, open_picture

ALIKE = 256  # side of the square whose area images are brought to, to see which of them are of one shape


class Candidates:
    """Makes and keeps the candidate images of a run.

    Args:
        editor: Who edits.
        sources: The pairs' images.
        folder: Where the files go.
        count: M.
        seed: Fixes the editor's draws, or with one at a provider only tells runs apart.
        budget: Pays an editor at a provider.
        journal: Where those payments are written down.

    Attributes:
        made, found: How many candidates this run has made, and how many were there.
        usage: What this run has paid a provider.

    Raises:
        UserError: If the budget is in dollars and the editor has no known price.
    """

    def __init__(
        self, editor: ImageEditor | HostedEditor, sources: SourceImages, folder: Path, *, count: int, seed: int,
        budget: Budget | None = None, journal: Journal | None = None,
    ) -> None:  # fmt: skip
        self.editor, self.sources, self.folder, self.count, self.seed = editor, sources, folder, count, seed
        self.is_hosted = isinstance(editor, HostedEditor)
        # here, so that an editor without one fails before anything waits for it
        self._batch_size = 1 if self.is_hosted else editor.batch_size
        self._budget, self._journal = budget or Budget(), journal
        if self.is_hosted and self._budget.max_usd is not None and not editor.price_bound:
            raise UserError(
                f"`max_usd` cannot be kept: no list price is known for the editor {editor.model!r}. Leave it out; "
                "`max_calls` bounds what the LLM is asked, and the number of failures and `candidates` what the editor is."
            )
        self.made, self.found, self.usage = 0, 0, Usage()
        self._draining: asyncio.Task[None] | None = None
        self._wishes: dict[tuple[str, str], asyncio.Task[list[Path | None]]] = {}
        self._arriving: asyncio.Queue[_Wanted] = asyncio.Queue()
        self._waiting: list[_Wanted] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """While this is open, `make` works. Leaving it waits for what is being made or paid for, then stops the editor."""
        try:
            async with nullcontext() if self.is_hosted else self._working():
                yield
        finally:
            self.stop()
            if self._draining is not None:
                await self._draining
            wishes = list(self._wishes.values())
            for wish in wishes:
                wish.cancel()
            await asyncio.gather(*wishes, return_exceptions=True)

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
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

    def stop(self) -> None:
        """Send nothing more to a provider. What is on its way there is paid for, and still arrives while this is open."""
        if self.is_hosted and self._draining is None:
            self._draining = asyncio.create_task(self.editor.drain())

    async def make(self, fp: int, instruction: str) -> list[Path | None]:
        """The files of the M candidates; None where the editor gave no image. Equal wishes are one piece of work.

        Raises:
            UnreadableImage: If the source cannot be opened.
            RunStopped: If the editor, its provider or the budget gave out.
        """
        wish = (self.sources.digest(fp), instruction)  # of two rows the image may be the same
        if wish not in self._wishes:
            self._wishes[wish] = asyncio.create_task(self._make(fp, instruction))
            self._wishes[wish].add_done_callback(_mark_as_seen)
        # shielded: whoever waits may be cancelled, what is paid for is kept all the same
        return await asyncio.shield(self._wishes[wish])

    async def _make(self, fp: int, instruction: str) -> list[Path | None]:
        source = self.sources.digest(fp)
        wanted = {"editor": self.editor.id, "source": source, "instruction": instruction, "seed": self.seed}
        names = [digest(wanted | {"candidate": m}) for m in range(self.count)]
        paths = [self.folder / name[:2] / f"{name}.png" for name in names]
        missing = [path for path in paths if not path.is_file() and not _refusal(path).is_file()]
        if missing:
            file = self.sources.file(fp)
            if self.is_hosted:
                await _all(self._buy(file, instruction, path, wanted) for path in missing)
            else:
                await self._draw(file, instruction, missing)
        given = [path if path.is_file() else None for path in paths]
        new = sum(path in missing for path in given)
        self.made += new
        self.found += sum(path is not None for path in given) - new
        return given

    async def _draw(self, source: bytes, instruction: str, paths: list[Path]) -> None:
        """By an editor of ours."""
        job = _Job(source, instruction, tuple(int(path.stem[:8], 16) for path in paths), tuple(paths))
        shape = _shape(source) if self._batch_size > 1 else None
        wanted = _Wanted(job, shape, asyncio.get_running_loop().create_future())
        self._arriving.put_nowait(wanted)
        if (failure := await wanted.done) is not None:
            raise failure

    async def _buy(self, source: bytes, instruction: str, path: Path, wanted: dict) -> None:
        """By an editor at a provider."""
        if self._draining is not None:
            raise asyncio.CancelledError
        reply = await self.editor.edit(source, instruction, self._budget, self._journal)
        if reply is None:
            return
        image = self.editor.opened(reply)
        await asyncio.to_thread(_save, path, image, reply.finish)
        if self._journal is not None:
            self._note(reply, wanted | {"file": path.name})
        self.editor.judge(reply, is_of_use=image is not None)

    def _note(self, reply: Reply, wanted: dict) -> None:
        times = 0  # more than 0 where somebody has deleted an image that was paid for
        while self._journal.get(key := request_key(wanted, times)) is not None:
            times += 1
        entry = Entry(
            key, wanted["file"], reply.finish, reply.prompt_tokens, reply.completion_tokens, reply.dollars,
            stage="edit", direction="t2i", model=self.editor.model, answered_by=reply.answered_by, at_most=reply.at_most,
        )  # fmt: skip
        self._journal.put(entry)
        self.usage.add(entry, replayed=False)

    async def _serve(self, executor: Executor) -> None:
        while True:
            batch = await self._next_batch()
            jobs, failure = [wanted.job for wanted in batch], None
            try:
                await asyncio.get_running_loop().run_in_executor(executor, _edit_and_save, self.editor, jobs)
            except Exception as error:  # whatever it is, those who wait must not wait for ever; it ends the run
                failure = _explain(error)
            for wanted in batch:
                if not wanted.done.done():  # its failure may have been called off meanwhile
                    wanted.done.set_result(failure)

    async def _next_batch(self) -> list[_Wanted]:
        """Whoever waits longest, with others of the same shape."""
        arrived = [] if self._waiting else [await self._arriving.get()]
        self._waiting += arrived  # not before: the other server may have been here meanwhile
        while not self._arriving.empty():
            self._waiting.append(self._arriving.get_nowait())
        first = self._waiting[0]
        batch = [wanted for wanted in self._waiting if wanted.shape == first.shape][: self._batch_size]
        self._waiting = [wanted for wanted in self._waiting if wanted not in batch]
        return batch


@dataclass(frozen=True)
class _Job:
    source: bytes  # an image file
    instruction: str
    seeds: tuple[int, ...]  # (S,)
    paths: tuple[Path, ...]  # (S,)


@dataclass(frozen=True, eq=False)
class _Wanted:
    job: _Job
    shape: tuple[int, int] | None
    done: asyncio.Future[Exception | None]  # what went wrong, if anything


def _edit_and_save(editor: ImageEditor, jobs: list[_Job]) -> None:
    """Edit a batch and write each image as it comes. Runs beside the event loop."""
    edited = editor.edit(
        [open_picture(job.source) for job in jobs],
        [job.instruction for job in jobs],
        [list(job.seeds) for job in jobs],
    )
    for job, images in zip(jobs, edited, strict=True):
        for path, image in zip(job.paths, images, strict=True):
            _save(path, image, "the editor gave no image")


def _save(path: Path, image: Image.Image | None, why_not: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if image is None:
        write_atomically(_refusal(path), why_not + "\n")
    else:
        write_atomically(path, _png(image))


def _refusal(path: Path) -> Path:
    return path.with_suffix(".none")


def _png(image: Image.Image) -> bytes:
    """Lossless, with the texts that the editor noted in `image.info`."""
    notes = PngInfo()
    for key, value in image.info.items():
        if isinstance(value, str):
            notes.add_itxt(key, value)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", pnginfo=notes, compress_level=3)  # a third of the time of level 6, 5% more bytes
    return buffer.getvalue()


def _shape(source: bytes) -> tuple[int, int] | None:
    """What tells images apart that cannot be edited together, read from the head of the file."""
    try:
        with open_image(source) as image:
            return fit(image.size, ALIKE)
    except UNDECODABLE:
        return None


async def _all(works) -> None:
    """Do all of it, also where some of it fails; then raise what failed first."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _mark_as_seen(task: asyncio.Task) -> None:
    if not task.cancelled():
        task.exception()  # nobody may be waiting any more


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
    # not a copy of this process, whose threads it would lack, but of one that has imported this module and no more
    can_fork = "forkserver" in multiprocessing.get_all_start_methods()  # Windows cannot
    context = multiprocessing.get_context("forkserver" if can_fork else "spawn")
    if can_fork:
        context.set_forkserver_preload([__name__])  # the next synthesis of this process waits for no import
    return ProcessPoolExecutor(1, mp_context=context, initializer=_follow_parent)


def _follow_parent() -> None:
    """In the editor's process: leave Ctrl-C to the parent, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def leave() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()
