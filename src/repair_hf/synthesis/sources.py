"""The pairs' images as the synthesis needs them: as files, as data URLs for a provider, as pictures for the encoder.

In:  the pairs' `images`, which stay encoded.
Out: bytes, data URLs, pictures and names of single images. A data URL is made once and kept while its image is in use.

Files come from strangers: they are opened within limits (see `pairs.images.open_image`), and what leaves the machine is always drawn
anew from the pixels, so that it holds no place, no name and no thumbnail of what was cropped away.
"""

from __future__ import annotations

import base64
import hashlib
import io
from functools import lru_cache
from pathlib import Path

import datasets
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from repair_hf.pairs.images import MAX_BYTES, UNDECODABLE, in_rgb, open_image
from repair_hf.runtime.options import UserError

LONGEST_SIDE = 1024  # beyond this, providers scale down themselves and bill for more tiles
SMALLEST_SIDE = 32  # pixels; of less, no model tells what it shows
SMALL_PNG = 256 * 1024  # bytes
URLS_KEPT = 1024  # about 150 MB of photographs
SCENE = "scene"  # the one text of a PNG that stays: the toy world's oracle and editor read it


class UnreadableImage(Exception):
    """An image file that is missing, too large, or cannot be decoded; the failures that need it are dropped."""


class SourceImages:
    """Access by row to the images of the pairs.

    Args:
        images: Their `images`.
        longest_side: Data URLs hold no more pixels than this on a side. Providers bill by size, each by its own rule.
    """

    def __init__(self, images: datasets.Dataset, *, longest_side: int = LONGEST_SIDE) -> None:
        if longest_side < SMALLEST_SIDE:
            raise UserError(f"`image_side` must be at least {SMALLEST_SIDE} pixels, got {longest_side}.")
        self.longest_side = longest_side
        self._rows = images.select_columns(["image"]).cast_column("image", datasets.Image(decode=False))
        self.url = lru_cache(URLS_KEPT)(self._url)
        self.digest = lru_cache(None)(self._digest)

    def reference(self, index: int) -> dict:
        """How a `datasets.Image` column names the image without decoding it: {"bytes": …, "path": …}."""
        return self._rows[index]["image"]

    def file(self, index: int) -> bytes:
        """The image's file, undecoded."""
        reference = self.reference(index)
        if reference["bytes"] is not None:
            return reference["bytes"]
        try:
            path = Path(reference["path"])
            if path.stat().st_size > MAX_BYTES or not path.is_file():  # a device, a pipe: they may never end
                raise UnreadableImage(f"{path} is no image file of at most {MAX_BYTES:,} bytes")
            return path.read_bytes()
        except OSError as error:
            raise UnreadableImage(str(error)) from error

    def picture(self, index: int) -> Image.Image:
        """The image, decoded, upright, RGB."""
        return open_picture(self.file(index))

    def _digest(self, index: int) -> str:
        return hashlib.sha256(self.file(index)).hexdigest()

    def _url(self, index: int) -> str:
        kind, data = redrawn(self.file(index), self.longest_side)
        return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def open_picture(data: bytes) -> Image.Image:
    """Decode an image file: upright, RGB, on white where it shows through, `.info` empty but for a scene of the toy world.

    Raises:
        UnreadableImage: If the file is broken, cut off or far too large.
    """
    try:
        with open_image(data) as image:
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            picture, scene = in_rgb(image), image.info.get(SCENE)
    except UNDECODABLE as error:
        raise UnreadableImage(f"{type(error).__name__}: {error}") from error
    # Pillow writes some of `info` (comments, colour profiles) into whatever file the picture is saved as
    picture.info = {SCENE: scene} if isinstance(scene, str) else {}
    return picture


def redrawn(data: bytes, longest_side: int) -> tuple[str, bytes]:
    """The same picture as a new file without metadata: of a small PNG a PNG, of everything else a JPEG.

    Args:
        data: An image file.
        longest_side: It is scaled down to at most so many pixels on a side.

    Returns:
        `png` or `jpeg`, and the file.

    Raises:
        UnreadableImage: If the file cannot be opened.
    """
    picture = open_picture(data)
    is_small_png = data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) <= SMALL_PNG
    picture.thumbnail((longest_side, longest_side))
    buffer = io.BytesIO()
    if is_small_png:
        notes = PngInfo()
        for name, text in picture.info.items():
            notes.add_text(name, text)
        picture.save(buffer, "PNG", pnginfo=notes, compress_level=1)  # small anyway
        return "png", buffer.getvalue()
    picture.save(buffer, "JPEG", quality=90)
    return "jpeg", buffer.getvalue()
