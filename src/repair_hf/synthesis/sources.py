"""The pairs' images as files, in questions to a provider, or decoded for the encoder.

Image files are untrusted: they are opened within limits (see `pairs.images.open_image`). What is sent to a provider is
always encoded again from the pixels, so it holds no metadata: no place, no name, no thumbnail of what was cropped
away.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable
from functools import lru_cache

import datasets
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from repair_hf.llm.keys import ImageURL
from repair_hf.pairs.images import UNDECODABLE, in_rgb, open_image, read_cell, undecoded
from repair_hf.synthesis.options import LONGEST_SIDE

SMALL_PNG = 256 * 1024  # bytes
URLS_KEPT = 1024  # about 150 MB of photographs
SCENE = "scene"  # the only PNG text that is kept: the toy world's oracle and editor read it


class UnreadableImage(Exception):
    """An image file that is missing, too large, or cannot be decoded; the failures that need it are dropped."""

    drop_reason = "unreadable_image"


class SourceImages:
    """Access by row to the images of the pairs. `longest_side` limits data URLs: providers bill by size."""

    def __init__(self, images: datasets.Dataset, *, longest_side: int = LONGEST_SIDE) -> None:
        self.longest_side = longest_side
        self._rows = undecoded(images, "image")
        self.url = lru_cache(URLS_KEPT)(self._url)
        self.digest = lru_cache(None)(self._digest)

    def reference(self, index: int) -> dict:
        """The undecoded cell of a `datasets.Image` column: {"bytes": …, "path": …}."""
        return self._rows[index]["image"]

    def file(self, index: int) -> bytes:
        """The image's file, undecoded."""
        try:
            return read_cell(self.reference(index))
        except OSError as error:
            raise UnreadableImage(str(error)) from error

    def picture(self, index: int) -> Image.Image:
        """The image, decoded, upright, RGB."""
        return open_picture(self.file(index))

    def _digest(self, index: int) -> str:
        return hashlib.sha256(self.file(index)).hexdigest()

    def _url(self, index: int) -> ImageURL:
        return _image_url(self.digest(index), self.longest_side, lambda: self.file(index))


def image_url(data: bytes, longest_side: int = LONGEST_SIDE) -> ImageURL:
    """Return what stands for an image file in a question; see `data_url`."""
    return _image_url(hashlib.sha256(data).hexdigest(), longest_side, lambda: data)


def _image_url(digest: str, longest_side: int, read: Callable[[], bytes]) -> ImageURL:
    return ImageURL(f"{digest}/{longest_side}", lambda: data_url(read(), longest_side))


def data_url(data: bytes, longest_side: int) -> str:
    """Encode an image file again without metadata, scaled down: a small PNG as PNG, anything else as JPEG.

    Raises:
        UnreadableImage: If the file cannot be opened.
    """
    picture, buffer = open_picture(data), io.BytesIO()
    is_small_png = data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) <= SMALL_PNG
    picture.thumbnail((longest_side, longest_side))
    if is_small_png:
        notes = PngInfo()
        if SCENE in picture.info:
            notes.add_text(SCENE, picture.info[SCENE])
        picture.save(buffer, "PNG", pnginfo=notes, compress_level=1)  # small anyway
    else:
        picture.save(buffer, "JPEG", quality=90)
    kind = "png" if is_small_png else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def open_picture(data: bytes) -> Image.Image:
    """Decode an image file: upright, RGB, transparency on white, `.info` empty except for a scene of the toy world.

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
    # Pillow would write some of `info` (comments, colour profiles) into any file saved from the picture
    picture.info = {SCENE: scene} if isinstance(scene, str) else {}
    return picture
