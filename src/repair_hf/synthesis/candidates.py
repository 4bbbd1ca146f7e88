"""Candidate images on disk: each is made once, even if the run is interrupted.

A file is named by what it was made from (editor, source, instruction, seed) and written atomically, so a file that
exists is complete. It is not made again. Where the editor made no image, a file `.none` stands for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from repair_hf.llm.budget import Budget
from repair_hf.llm.cost import Usage
from repair_hf.llm.journal import RESERVE, Entry, Journal, open_journal, request_key
from repair_hf.llm.provider import Reply
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest
from repair_hf.synthesis.hosted import CONCURRENCY, HostedEditor
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.local_edits import EditorThread, refusal_file, save_candidate
from repair_hf.synthesis.outcome import UNREACHED
from repair_hf.synthesis.sources import SourceImages


def open_image_journal(
    editor: ImageEditor | HostedEditor | None,
    folder: Path,
    budget: Budget,
    counted: set[Path],
    *,
    process: int = 0,
    processes: int = 1,
) -> Journal | nullcontext[None]:
    """Open the journal of paid images of an editor at a provider. What it holds counts once as spent."""
    if not isinstance(editor, HostedEditor):
        return nullcontext()
    reserve = RESERVE + CONCURRENCY * 3 * editor.size**2  # lossless images are no larger than their pixels
    journal = open_journal(folder, "images", process=process, processes=processes, reserve=reserve)
    if journal.path not in counted:
        counted.add(journal.path)
        budget.count(journal.dollars)
    return journal


def candidate_files(folder: Path, count: int, made_from: Mapping[str, Any]) -> list[Path]:
    """Return the paths of the candidates of an edit.

    `made_from` has the `editor`, the SHA-256 of the `source`'s file, the `instruction` and the `seed`.
    """
    names = [digest({**made_from, "candidate": m}) for m in range(count)]
    return [folder / name[:2] / f"{name}.png" for name in names]


class Candidates:
    """Make and keep the candidate images of a run.

    `seed` fixes the editor's draws; an editor at a provider takes none, there it only separates runs. `budget` and
    `journal` pay and record the images of such an editor.

    Attributes:
        made: How many candidates this run has made; `found` were there.
        usage: What this run has paid a provider.

    Raises:
        UserError: If the budget is in dollars and the editor has no known price.
    """

    def __init__(
        self,
        editor: ImageEditor | HostedEditor,
        sources: SourceImages,
        folder: Path,
        *,
        count: int,
        seed: int,
        budget: Budget | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.editor, self.sources, self.folder, self.count, self.seed = editor, sources, folder, count, seed
        self._budget, self._journal = budget or Budget(), journal
        self._hosted = editor if isinstance(editor, HostedEditor) else None
        self._local = None if isinstance(editor, HostedEditor) else EditorThread(editor)
        if self._hosted is not None and self._budget.max_usd is not None and not self._hosted.price_bound:
            raise UserError(
                f"`max_usd` cannot be enforced: no list price is known for the editor {self._hosted.model!r}. Leave "
                "it out; `limit` and `candidates` limit the images, and `max_calls` the LLM answers."
            )
        self.made, self.found, self.usage = 0, 0, Usage()
        self._draining: asyncio.Task[None] | None = None
        self._edits: dict[tuple[str, str], asyncio.Task[list[Path | None]]] = {}

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Accept edits while open. On closing, wait for the images in progress, then stop the editor."""
        try:
            async with nullcontext() if self._local is None else self._local.open():
                yield
        finally:
            self.stop()
            if self._draining is not None:
                await self._draining
            edits = list(self._edits.values())
            for edit in edits:
                edit.cancel()
            await asyncio.gather(*edits, return_exceptions=True)

    def stop(self) -> None:
        """Send nothing more to a provider. Images on their way are paid for, and still arrive while this is open."""
        if self._hosted is not None and self._draining is None:
            self._draining = asyncio.create_task(self._hosted.drain())

    async def make(self, fp: int, instruction: str) -> list[Path | None]:
        """The files of the M candidates; None where the editor gave no image. Equal edits are made once.

        Raises:
            UnreadableImage: If the source cannot be opened.
            RunStopped: If the editor or its provider failed, or the budget is spent.
        """
        name = (self.sources.digest(fp), instruction)  # two rows may hold the same image
        if name not in self._edits:
            self._edits[name] = asyncio.create_task(self._make(fp, instruction))
            self._edits[name].add_done_callback(_mark_as_seen)
        # shielded: a caller may be cancelled, and what is paid for is kept all the same
        return await asyncio.shield(self._edits[name])

    def why_none(self, fp: int, instruction: str) -> str:
        """Say why an edit has no candidates: the editor made none, or could not be reached (`UNREACHED`)."""
        _, paths = self._planned(fp, instruction)
        return "no candidate could be made" if all(refusal_file(path).is_file() for path in paths) else UNREACHED

    def _planned(self, fp: int, instruction: str) -> tuple[dict[str, Any], list[Path]]:
        """Return what an edit is made from, and the files of its candidates."""
        source = self.sources.digest(fp)
        made_from = {"editor": self.editor.id, "source": source, "instruction": instruction, "seed": self.seed}
        return made_from, candidate_files(self.folder, self.count, made_from)

    async def _make(self, fp: int, instruction: str) -> list[Path | None]:
        made_from, paths = self._planned(fp, instruction)
        missing = [path for path in paths if not path.is_file() and not refusal_file(path).is_file()]
        if missing:
            file = self.sources.file(fp)
            if self._local is not None:
                await self._local.edit(file, instruction, missing)
            elif self._hosted is not None:
                await _all(self._buy(self._hosted, file, path, made_from) for path in missing)
        given = [path if path.is_file() else None for path in paths]
        new = sum(path in missing for path in given)
        self.made += new
        self.found += sum(path is not None for path in given) - new
        return given

    async def _buy(self, editor: HostedEditor, source: bytes, path: Path, made_from: dict[str, Any]) -> None:
        """Make one candidate with the editor at a provider."""
        if self._draining is not None:
            raise asyncio.CancelledError
        reply = await editor.edit(source, made_from["instruction"], self._budget, self._journal)
        if reply is None:
            return
        image = editor.opened(reply)
        save = partial(save_candidate, path, image, reply.finish)
        await asyncio.to_thread(save if self._journal is None else partial(self._journal.reserve.keep, save))
        if self._journal is not None:
            self._note(self._journal, reply, editor.model, made_from | {"file": path.name})
        editor.circuit.note(f"no image: {reply.finish}" if image is None else None)  # now that the reply is on disk

    def _note(self, journal: Journal, reply: Reply, model: str, made_from: dict[str, Any]) -> None:
        times = 0  # above 0 if an image that was paid for has been deleted
        while journal.get(key := request_key(made_from, times)) is not None:
            times += 1
        answer = key, made_from["file"], reply.finish
        bill = reply.prompt_tokens, reply.completion_tokens, reply.dollars
        entry = Entry(*answer, *bill, "edit", "t2i", model, reply.answered_by, at_most=reply.at_most)
        self.usage.add(entry, replayed=False)
        journal.put(entry)


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Finish all of it, even if some fails; then raise what failed first."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _mark_as_seen(task: asyncio.Task) -> None:
    if not task.cancelled():
        task.exception()  # nobody may be waiting any more
