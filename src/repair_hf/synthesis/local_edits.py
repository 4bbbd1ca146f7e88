"""Make candidate images with an editor on this machine. `save_candidate` writes those of any editor."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from repair_hf.runtime.run_folder import write_atomically
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.sources import open_picture

SMALLEST = 16  # pixels of a side


def edit_here(editor: ImageEditor, source: bytes, instruction: str, paths: Sequence[Path]) -> None:
    """Edit an image file once per path, and write the results there. The name of a path gives the seed.

    Raises:
        UnreadableImage: If the file cannot be opened.
    """
    seeds = [int(path.stem[:8], 16) for path in paths]
    for path, image in zip(paths, editor.edit(open_picture(source), instruction, seeds), strict=True):
        if fault := save_candidate(path, image):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(refusal_file(path), fault + "\n")


def save_candidate(path: Path, image: Image.Image | None) -> str | None:
    """Write a candidate as a lossless PNG; or return why the image is none."""
    if image is None:
        return "no image that can be read"
    if min(image.size) < SMALLEST:
        return f"an image of {image.width} x {image.height} pixels"
    if not image.getbbox():  # by a safety checker, or because numbers overflowed in half precision
        return "a black image"
    path.parent.mkdir(parents=True, exist_ok=True)
    notes = PngInfo()
    for key, value in image.info.items():
        if isinstance(value, str):
            notes.add_itxt(str(key), value)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", pnginfo=notes, compress_level=3)  # a third of the time of level 6, 5% more bytes
    write_atomically(path, buffer.getvalue())
    return None


def refusal_file(path: Path) -> Path:
    """The file that stands for a candidate that the editor did not make."""
    return path.with_suffix(".none")
