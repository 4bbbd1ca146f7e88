"""Candidate images of edits: each is made once, even if the run is interrupted.

A file is named by what it was made from (editor, source, instruction, seed), and lies in `candidates/` beside the
ledger. It is not made again unless it is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from repair_hf.llm.answers import AnswerError
from repair_hf.runtime.run_folder import digest
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.options import Format
from repair_hf.synthesis.outcome import UNREACHED
from repair_hf.synthesis.picture_files import SUFFIXES, reason_at, save_picture, save_reason
from repair_hf.synthesis.sources import SourceImages, open_picture

FOLDER = "candidates"  # beside the ledger
GRACE = 60.0  # seconds that images on their way get to arrive when a run stops; they are paid for already


class FailedEdit(AnswerError):
    """An edit has no candidate. If its message begins with `UNREACHED`, the next run asks again."""

    drop_reason = "editor_failed"


class Candidates:
    """Make and keep the candidate images of a run.

    Args:
        editor: The image editor.
        sources: The images to edit.
        folder: The ledger's folder.
        count: Candidates of each edit.
        seed: Fixes the editor's draws; a hosted editor takes none, there it only separates runs.
        save_as: Format of new images.

    Attributes:
        made: How many candidates this run has made.
        reused: How many were there, or were made for an equal edit.
    """

    def __init__(
        self,
        editor: ImageEditor | HostedEditor,
        sources: SourceImages,
        folder: Path,
        *,
        count: int,
        seed: int,
        save_as: Format = "png",
    ) -> None:
        self.editor, self.sources, self.count, self.seed = editor, sources, count, seed
        self.suffix, self.folder = SUFFIXES[save_as], folder / FOLDER
        self.made = self.reused = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="image-editor")  # of an editor on this machine
        self._edits: dict[str, asyncio.Task[tuple[list[Path], list[str]]]] = {}  # by the first file's name
        self._is_closing = False

    async def make(self, fp: int, instruction: str) -> list[Path | None]:
        """Return the files of the M candidates; None where the editor gave no image. Equal edits are made once.

        Raises:
            FailedEdit: If there is none at all.
            UnreadableImage: If the source cannot be opened.
            RunStopped: If the editor or its provider failed, or a ceiling is reached.
        """
        paths = self._paths(fp, instruction)  # equal for two rows with the same image
        name = paths[0].name
        is_first = name not in self._edits
        if is_first:
            edit = self._edits[name] = asyncio.create_task(self._make(fp, instruction, paths))
            edit.add_done_callback(lambda edit: self._forget(name, edit))
        # shielded: a caller may be cancelled, and what is paid for is kept all the same
        missing, faults = await asyncio.shield(self._edits[name])
        candidates = [path if path.is_file() else None for path in paths]
        new = sum(path in missing for path in candidates if path) if is_first else 0
        self.made += new
        self.reused += sum(path is not None for path in candidates) - new
        if not any(candidates):
            reasons = sorted({reason_at(path) or "" for path in paths})
            raise FailedEdit(f"{UNREACHED}: {faults[0]}" if faults else f"no candidate: {'; '.join(reasons)}")
        return candidates

    async def close(self) -> None:
        """Start nothing new, and wait for the images in progress: those of a provider are paid for already."""
        self._is_closing = True
        if isinstance(self.editor, HostedEditor):
            await self.editor.drain(GRACE)
        else:
            await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        edits = list(self._edits.values())
        for edit in edits:
            edit.cancel()
        await asyncio.gather(*edits, return_exceptions=True)

    def _paths(self, fp: int, instruction: str) -> list[Path]:
        """Return the files of the candidates of an edit. Those that exist may have another suffix."""
        made_from: dict[str, Any] = {"editor": self.editor.id, "source": self.sources.digest(fp)}
        made_from |= {"instruction": instruction, "seed": self.seed}
        names = [digest({**made_from, "candidate": m}) for m in range(self.count)]
        places = [self.folder / name[:2] / f"{name}{self.suffix}" for name in names]
        return [next(filter(Path.is_file, map(place.with_suffix, SUFFIXES.values())), place) for place in places]

    async def _make(self, fp: int, instruction: str, paths: list[Path]) -> tuple[list[Path], list[str]]:
        """Make what is missing; return these paths, and why requests failed that the next run repeats."""
        missing = [path for path in paths if not path.is_file() and reason_at(path) is None]
        if not missing:
            return [], []
        if self._is_closing:
            raise asyncio.CancelledError
        source = self.sources.file(fp)
        if isinstance(self.editor, HostedEditor):
            return missing, await self.editor.edit(source, instruction, missing)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, edit_here, self.editor, source, instruction, missing)
        return missing, []

    def _forget(self, name: str, edit: asyncio.Task) -> None:
        del self._edits[name]
        if not edit.cancelled():
            edit.exception()  # marks it as retrieved: nobody may be waiting any more


def edit_here(editor: ImageEditor, source: bytes, instruction: str, paths: Sequence[Path]) -> None:
    """Edit an image file once per path, and write the results there. The name of a path gives the seed.

    Raises:
        UnreadableImage: If the file cannot be opened.
    """
    seeds = [int(path.stem[:8], 16) for path in paths]
    for path, image in zip(paths, editor.edit(open_picture(source), instruction, seeds), strict=True):
        fault = save_picture(path, image)
        if fault is not None:
            save_reason(path, fault)
