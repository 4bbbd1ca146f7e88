"""The files of candidate images.

| file | means |
|---|---|
| `NAME.png`, `.webp` or `.jpg` | the candidate; written atomically, so a file that exists is complete |
| `NAME.none` | the editor made no image; holds why |
"""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from repair_hf.pairs.images import UNDECODABLE, in_rgb
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.synthesis.sources import SCENE

SUFFIXES = {"png": ".png", "webp": ".webp", "jpeg": ".jpg"}  # by the option `editor_format`
SMALLEST = 16  # pixels of a side
QUALITY = 85  # of a JPEG: about a sixth of the bytes of a PNG
UNREADABLE = "no image that can be read"


def save_picture(path: Path, image: Image.Image | None) -> str | None:
    """Write an editor's image, of any mode, in the format of the path's suffix; or return why it is none.

    PNG and WebP lose nothing.
    """
    if image is None:
        return UNREADABLE
    try:
        picture = in_rgb(image)
    except UNDECODABLE:  # it may not be loaded yet
        return UNREADABLE
    if min(picture.size) < SMALLEST:
        return f"an image of {picture.width} x {picture.height} pixels"
    if not picture.getbbox():  # by a safety checker, or because numbers overflowed in half precision
        return "a black image"
    buffer = io.BytesIO()
    if path.suffix == ".jpg":
        picture.save(buffer, "JPEG", quality=QUALITY)
    elif path.suffix == ".webp":
        picture.save(buffer, "WEBP", lossless=True, exact=True)
    else:
        notes = PngInfo()
        if isinstance(image.info.get(SCENE), str):
            notes.add_itxt(SCENE, image.info[SCENE])
        picture.save(buffer, "PNG", pnginfo=notes, compress_level=3)  # a third of the time of level 6, 5% more bytes
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())
    return None


def save_reason(path: Path, reason: str) -> None:
    """Note why there is no image at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path.with_suffix(".none"), reason + "\n")


def reason_at(path: Path) -> str | None:
    """Return why there is no image at a path; None if nobody has noted it."""
    file = path.with_suffix(".none")
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None
