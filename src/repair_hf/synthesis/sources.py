"""The pairs' images as the synthesis needs them: as files, as data URLs for a provider, as pictures for the encoder.

In:  the pairs' `images`, which stay encoded.
Out: bytes, data URLs, pictures and names of single images. A data URL is made once and kept while its image is in use.

What is sent: a small PNG as it is, everything else as an upright RGB JPEG of at most `LONGEST_SIDE` pixels, without metadata.
"""

from __future__ import annotations

import base64
import hashlib
import io
from functools import lru_cache
from pathlib import Path

import datasets
from PIL import Image, ImageOps

from repair_hf.pairs.images import UNDECODABLE

LONGEST_SIDE = 1024  # beyond this, providers scale down themselves and bill for more tiles
SMALL_PNG = 256 * 1024  # bytes
URLS_KEPT = 1024  # about 150 MB of photographs


class UnreadableImage(Exception):
    """An image file that is missing or cannot be decoded; the failures that need it are dropped."""


class SourceImages:
    """Access by row to the images of the pairs."""

    def __init__(self, images: datasets.Dataset) -> None:
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
            return Path(reference["path"]).read_bytes()
        except OSError as error:
            raise UnreadableImage(str(error)) from error

    def picture(self, index: int) -> Image.Image:
        """The image, decoded, upright, RGB."""
        return open_picture(self.file(index))

    def _digest(self, index: int) -> str:
        return hashlib.sha256(self.file(index)).hexdigest()

    def _url(self, index: int) -> str:
        data = self.file(index)
        picture = open_picture(
            data
        )  # also for a file that is sent as it is: the provider must not be who finds it broken
        is_small = len(data) <= SMALL_PNG and max(picture.size) <= LONGEST_SIDE
        if data.startswith(b"\x89PNG\r\n\x1a\n") and is_small:
            return "data:image/png;base64," + base64.b64encode(data).decode("ascii")
        picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=90)
        return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def open_picture(data: bytes) -> Image.Image:
    """Decode an image file: upright, RGB, its text metadata kept in `.info`.

    Raises:
        UnreadableImage: If the file is broken, cut off or far too large.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return image if image.mode == "RGB" else image.convert("RGB")
    except UNDECODABLE as error:
        raise UnreadableImage(f"{type(error).__name__}: {error}") from error
