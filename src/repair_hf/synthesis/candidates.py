"""Candidate images of edits: each is made once, even if the run is interrupted.

A file is named by what it was made from (editor, source, instruction, seed). It is not made again unless it is gone or
damaged. What a provider did is in the ledger, under the name of the file.

| file | means |
|---|---|
| `NAME.png`, `.webp` or `.jpg` | the candidate; written atomically, so a file that exists is complete |
| `NAME.none` | an editor on this machine made no image; holds why |
| `NAME.broken` | a disk damaged it |
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import shutil
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from repair_hf.llm.cost import Usage
from repair_hf.llm.errors import FailedRequest
from repair_hf.llm.ledger import Ledger, Reply, Topic
from repair_hf.llm.prompts import DRAW, draws
from repair_hf.llm.sending import Question, Send
from repair_hf.pairs.images import UNDECODABLE, open_image
from repair_hf.runtime.run_folder import digest, write_atomically
from repair_hf.synthesis.hosted import NO_IMAGE, HostedEditor
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.options import Format
from repair_hf.synthesis.outcome import UNREACHED
from repair_hf.synthesis.sources import SourceImages, open_picture

logger = logging.getLogger(__name__)

FOLDER = "candidates"  # beside the ledger
SUFFIXES = {"png": ".png", "webp": ".webp", "jpeg": ".jpg"}  # by the option `editor_format`
SMALLEST = 16  # pixels of a side
QUALITY = 85  # of a JPEG: about a sixth of the bytes of a PNG
ATTEMPTS = 2  # at an image, if an answer holds none and names no filter
GRACE = 60.0  # seconds that images on their way get to arrive when a run stops; they are paid for already


class Candidates:
    """Make and keep the candidate images of a run.

    `seed` fixes the editor's draws; an editor at a provider takes none, there it only separates runs. Images lie
    beside the ledger, which pays for those of such an editor. New ones get the format `save_as`.

    Attributes:
        made: How many candidates this run has made; `found` were there.
        usage: What this run has paid a provider.

    Raises:
        UserError: If there is a ceiling in dollars and the editor has no known price.
    """

    def __init__(
        self,
        editor: ImageEditor | HostedEditor,
        sources: SourceImages,
        ledger: Ledger,
        *,
        count: int,
        seed: int,
        save_as: Format = "png",
    ) -> None:
        self.editor, self.sources, self.ledger, self.count, self.seed = editor, sources, ledger, count, seed
        self.suffix, self.folder = SUFFIXES[save_as], ledger.folder / FOLDER
        self._sender = editor.sender(ledger) if isinstance(editor, HostedEditor) else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="image-editor")  # of an editor on this machine
        self.made, self.found, self.usage = 0, 0, Usage()
        self._has_warned = self._is_closing = False
        self._draining: asyncio.Task[None] | None = None
        self._edits: dict[str, asyncio.Task[list[Path | None]]] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Accept edits while open. On closing, wait for the images in progress, and drop those that wait."""
        try:
            yield
        finally:
            self._is_closing = True
            await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
            self.stop()
            if self._draining is not None:
                await self._draining
            edits = list(self._edits.values())
            for edit in edits:
                edit.cancel()
            await asyncio.gather(*edits, return_exceptions=True)

    def stop(self) -> None:
        """Send nothing more to a provider. Images on their way are paid for, and still arrive while this is open."""
        if self._sender is not None and self._draining is None:
            self._draining = asyncio.create_task(self._sender.drain(GRACE))

    async def make(self, fp: int, instruction: str) -> list[Path | None]:
        """The files of the M candidates; None where the editor gave no image. Equal edits are made once.

        Raises:
            UnreadableImage: If the source cannot be opened.
            RunStopped: If the editor or its provider failed, or a ceiling is reached.
        """
        paths = self._paths(fp, instruction)  # equal for two rows with the same image
        name = paths[0].name
        if name not in self._edits:
            self._edits[name] = asyncio.create_task(self._make(fp, instruction, paths))
            self._edits[name].add_done_callback(_mark_as_seen)
        # shielded: a caller may be cancelled, and what is paid for is kept all the same
        return await asyncio.shield(self._edits[name])

    def why_none(self, fp: int, instruction: str) -> str:
        """Say why an edit has no candidates: what the editor gave, or that it was not reached (`UNREACHED`)."""
        paths = self._paths(fp, instruction)
        if self._missing(paths):
            return UNREACHED
        reasons = {reason for path in paths if (reason := self._why_none(path))}
        return f"no candidate could be made: {'; '.join(sorted(reasons))}" if reasons else "no candidate could be made"

    def _why_none(self, path: Path) -> str:
        if self._sender is None:
            return path.with_suffix(".none").read_text(encoding="utf-8").strip()
        call = self.ledger.find(path.stem)
        if call is None or call.reply is None:
            return ""
        return call.reply.text if call.state == "rejected" else call.reply.finish

    def _paths(self, fp: int, instruction: str) -> list[Path]:
        """Return the files of the candidates of an edit. Those that exist may have another suffix."""
        made_from: dict[str, Any] = {"editor": self.editor.id, "source": self.sources.digest(fp)}
        made_from |= {"instruction": instruction, "seed": self.seed}
        if instruction.startswith(DRAW) and not draws(instruction):  # an edit in the words of a drawing
            made_from |= {"draws": False}
        names = [digest({**made_from, "candidate": m}) for m in range(self.count)]
        places = [self.folder / name[:2] / f"{name}{self.suffix}" for name in names]
        return [next(filter(Path.is_file, map(place.with_suffix, SUFFIXES.values())), place) for place in places]

    def _missing(self, paths: list[Path]) -> list[Path]:
        """Return the candidates that are still to be made."""
        return [path for path in paths if not path.is_file() and not self._is_refused(path)]

    def _is_refused(self, path: Path) -> bool:
        """Return whether an editor is known to make no image here."""
        if self._sender is None:
            return path.with_suffix(".none").is_file()
        call = self.ledger.find(path.stem)
        return call is not None and call.reply is not None and Path(call.reply.text).stem != path.stem

    async def _make(self, fp: int, instruction: str, paths: list[Path]) -> list[Path | None]:
        await asyncio.to_thread(self._set_broken_aside, paths)
        missing = self._missing(paths)
        if missing:
            file = self.sources.file(fp)
            if not isinstance(self.editor, HostedEditor):
                if self._is_closing:
                    raise asyncio.CancelledError
                await asyncio.get_running_loop().run_in_executor(
                    self._thread, edit_here, self.editor, file, instruction, missing
                )
            else:
                send = await self.editor.request(file, instruction)
                await _all(self._buy(self.editor, send, path) for path in missing)
        given = [path if path.is_file() else None for path in paths]
        for path in paths:
            call = None if path in missing or self._sender is None else self.ledger.find(path.stem)
            if call is not None and call.reply is not None:
                self.usage.add(call.reply, replayed=True)
        new = sum(path in missing for path in given)
        self.made += new
        self.found += sum(path is not None for path in given) - new
        return given

    def _set_broken_aside(self, paths: list[Path]) -> None:
        """Rename files that are damaged, so that they are made again; the first of a run is logged."""
        for path in filter(Path.is_file, paths):
            if is_damaged(path):
                path.replace(path.with_suffix(".broken"))
                if not self._has_warned:
                    self._has_warned = True
                    again = "made" if self._sender is None else "paid for"
                    logger.warning("%s is damaged. Such files are renamed to .broken, and %s again.", path, again)

    async def _buy(self, editor: HostedEditor, send: Send, path: Path) -> None:
        """Make one candidate with the editor at a provider, unless every attempt fails."""

        async def saved(reply: Reply) -> Reply:
            fault = await asyncio.to_thread(lambda: save_candidate(path, editor.opened(reply)))
            if fault and reply.text:
                reply = reply._replace(finish=fault)
            return reply._replace(text="" if fault else path.name)

        async def send_and_save() -> Reply:
            return await saved(await send())

        async def read_and_save(body: bytes) -> Reply:
            return await saved(await editor.read(body))

        assert self._sender is not None, "it belongs to the editor"
        topic = Topic("edit", "t2i", editor.model)
        question = Question(path.stem, topic, send_and_save, lambda: editor.price_bound, read=read_and_save)
        for _ in range(ATTEMPTS):
            # Its file was deleted, or set aside; or no image came.
            self.ledger.ask_again(path.stem, lambda: not path.is_file())
            try:
                call, is_new = await self._sender.ask(question)
            except FailedRequest:
                return
            if call.state != "answered" or call.reply is None:
                return
            self.usage.add(call.reply, replayed=not is_new)
            fault = None if call.reply.text else call.reply.finish
            self._sender.circuit.note(fault)  # now that the reply is in the ledger
            if fault is None or not fault.startswith(NO_IMAGE):
                return


def edit_here(editor: ImageEditor, source: bytes, instruction: str, paths: Sequence[Path]) -> None:
    """Edit an image file once per path, and write the results there. The name of a path gives the seed.

    Raises:
        UnreadableImage: If the file cannot be opened.
    """
    seeds = [int(path.stem[:8], 16) for path in paths]
    for path, image in zip(paths, editor.edit(open_picture(source), instruction, seeds), strict=True):
        if fault := save_candidate(path, image):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path.with_suffix(".none"), fault + "\n")


def save_candidate(path: Path, image: Image.Image | None) -> str | None:
    """Write a candidate in the format of its suffix, PNG and WebP without loss; or return why the image is none."""
    if image is None:
        return "no image that can be read"
    if min(image.size) < SMALLEST:
        return f"an image of {image.width} x {image.height} pixels"
    if not image.getbbox():  # by a safety checker, or because numbers overflowed in half precision
        return "a black image"
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    if path.suffix == ".jpg":
        image.convert("RGB").save(buffer, "JPEG", quality=QUALITY)
    elif path.suffix == ".webp":
        image.save(buffer, "WEBP", lossless=True, exact=True)
    else:
        notes = PngInfo()
        for key, value in image.info.items():
            if isinstance(value, str):
                notes.add_itxt(str(key), value)
        image.save(buffer, "PNG", pnginfo=notes, compress_level=3)  # a third of the time of level 6, 5% more bytes
    write_atomically(path, buffer.getvalue())
    return None


def is_damaged(path: Path) -> bool:
    """Return whether a candidate's file can no longer be read."""
    try:
        with open_image(path.read_bytes()) as image:
            image.verify() if image.format == "PNG" else image.load()  # a PNG has checksums
    except UNDECODABLE:
        return True
    return False


def link_candidates(source: Path, target: Path) -> None:
    """Take over the candidate images of another folder; without hard links they are copied."""
    if (source / FOLDER).is_dir():
        shutil.copytree(source / FOLDER, target / FOLDER, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    if os.path.exists(target):  # another folder has the same image
        return
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without hard links
        draft = f"{target}.tmp"
        shutil.copyfile(source, draft)
        os.replace(draft, target)  # a copy is whole or absent


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Finish all of it, even if some fails; then raise what failed first."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _mark_as_seen(task: asyncio.Task) -> None:
    if not task.cancelled():
        task.exception()  # nobody may be waiting any more
