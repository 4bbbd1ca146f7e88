"""One edit to be made with an editor on this machine, and the files that its images go to.

Each image is written to its file as soon as it is there.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from os.path import relpath
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from repair_hf.runtime.run_folder import write_atomically
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.sources import open_picture


@dataclass(frozen=True)
class Job:
    """An image file, an instruction, and a path for each candidate; the path's name gives the seed."""

    source: bytes
    instruction: str
    paths: tuple[Path, ...]

    @property
    def is_done(self) -> bool:
        return all(path.is_file() or refusal_file(path).is_file() for path in self.paths)


def edit_and_save(editor: ImageEditor, jobs: Sequence[Job]) -> None:
    """Edit a batch and write each image as it comes. Runs outside the event loop."""
    edited = editor.edit(
        [open_picture(job.source) for job in jobs],
        [job.instruction for job in jobs],
        [[int(path.stem[:8], 16) for path in job.paths] for job in jobs],
    )
    for job, images in zip(jobs, edited, strict=True):
        for path, image in zip(job.paths, images, strict=True):
            save_candidate(path, image, "the editor gave no image")


def save_candidate(path: Path, image: Image.Image | None, why_not: str) -> None:
    """Write a candidate as a lossless PNG, or a file that says why there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if image is None:
        write_atomically(refusal_file(path), why_not + "\n")
        return
    notes = PngInfo()
    for key, value in image.info.items():
        if isinstance(value, str):
            notes.add_itxt(str(key), value)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", pnginfo=notes, compress_level=3)  # a third of the time of level 6, 5% more bytes
    write_atomically(path, buffer.getvalue())


def refusal_file(path: Path) -> Path:
    """The file that stands for a candidate that the editor did not make."""
    return path.with_suffix(".none")


def pack(jobs: Sequence[Job], folder: Path) -> bytes:
    """Write jobs as a line of JSON and the image files; paths relative to a folder, which others may see elsewhere."""
    heads = [[job.instruction, [relpath(path, folder) for path in job.paths], len(job.source)] for job in jobs]
    return json.dumps(heads).encode() + b"\n" + b"".join(job.source for job in jobs)


def unpack(data: bytes, folder: Path) -> list[Job]:
    """Read what `pack` wrote."""
    head, _, sources = data.partition(b"\n")
    jobs, start = [], 0
    for instruction, paths, size in json.loads(head):
        jobs.append(Job(sources[start : start + size], instruction, tuple(folder / path for path in paths)))
        start += size
    return jobs
