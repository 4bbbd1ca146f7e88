"""Check image files, convert images to RGB, and digest their content.

Broken files must be found early, without decoding every image: of a PNG the checksums are read, and a JPEG is decoded
to its smallest version.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL.Image
import PIL.ImageOps
from datasets import Dataset, Image
from tqdm.auto import tqdm

# Pillow's errors for a file that it cannot decode: SyntaxError for broken PNG chunks, TypeError and AttributeError for
# tags of the wrong type.
UNDECODABLE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    TypeError,
    AttributeError,
    struct.error,
    zlib.error,
    PIL.Image.DecompressionBombError,
)
# Pillow knows more formats; EPS among them starts another program.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
MAX_BYTES = 64 * 2**20
MAX_PIXELS = 2**28 // 3  # 256 MB when decoded
THREADS = 8  # opening files waits mostly for the disk


class Inspection(NamedTuple):
    """The result of checking one image."""

    problem: str | None  # a key of `KINDS`
    is_transparent: bool = False
    is_deep: bool = False


def inspect_images(images: Dataset, within: Sequence[Path] | None = None) -> list[Inspection]:
    """Check each image of the column `image`. Files must lie in one of the folders `within`, if these are given."""
    found: list[Inspection] = []
    with (
        ThreadPoolExecutor(THREADS) as threads,
        tqdm(total=len(images), desc="Checking images", delay=3, disable=None) as bar,
    ):
        for some in _references(images, "image"):
            found += threads.map(partial(_inspect, within=within), some)
            bar.update(len(some))
    return found


def redraw(images: Dataset, rows: set[int]) -> Dataset:
    """Replace the images at `rows` by their `in_rgb` versions, so that every reader sees the same pixels."""

    def draw(row: dict, index: int) -> dict:
        if index not in rows:
            return row
        with _open(row["image"]) as image:
            image = in_rgb(PIL.ImageOps.exif_transpose(image))
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return {"image": {"bytes": buffer.getvalue(), "path": row["image"]["path"]}}

    return images.map(draw, with_indices=True, features=images.features, desc="Drawing images in plain RGB")


def in_rgb(image: PIL.Image.Image) -> PIL.Image.Image:
    """Convert an image of any mode to RGB, with a white background if it is transparent and greys scaled to 8 bits."""
    image = in_8_bits(image)
    if not is_transparent(image):
        return image.convert("RGB")
    white = PIL.Image.new("RGBA", image.size, "white")
    return PIL.Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def in_8_bits(image: PIL.Image.Image) -> PIL.Image.Image:
    """Scale grey values of 16 or 32 bits to 8; Pillow's `convert` clips them at 255 and turns the image white.

    Black to white is 0 to 65535 for integers and 0 to 1 for floats. An image beyond this range is scaled by its own
    range. Images of other modes are returned unchanged.
    """
    if not is_deep(image):
        return image
    values = np.asarray(image).astype(np.float32)
    values[~np.isfinite(values)] = 0
    low, high = 0.0, 1.0 if image.mode == "F" else 65535.0
    if values.min() < low or values.max() > high:
        low, high = float(values.min()), float(values.max())
    greys = np.rint((values - low) * (255 / (high - low or 1.0))).astype(np.uint8)
    if is_transparent(image):
        greys[values == image.info["transparency"]] = 255  # white background
    return PIL.Image.fromarray(greys)


def is_transparent(image: PIL.Image.Image) -> bool:
    """Whether a background would show through an image."""
    return "A" in image.getbands() or image.info.get("transparency") is not None


def is_deep(image: PIL.Image.Image) -> bool:
    """Whether an image has grey values of more than 8 bits."""
    return image.mode.startswith(("I", "F"))


def open_image(source: bytes | str) -> PIL.Image.Image:
    """Open an image file, or its bytes, without decoding it yet.

    Raises:
        OSError: If it is too large, or not in one of `FORMATS`. For other errors see `UNDECODABLE`.
    """
    size = len(source) if isinstance(source, bytes) else os.path.getsize(source)
    if size > MAX_BYTES:
        raise OSError(f"the file has {size:,} bytes; at most {MAX_BYTES:,} are read")
    image = PIL.Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise OSError(f"the image has {image.width:,} x {image.height:,} pixels; at most {MAX_PIXELS:,} are decoded")
    return image


def decode_small(source: bytes | str, least: int) -> PIL.Image.Image:
    """Decode an image, upright: a JPEG at 1/2, 1/4 or 1/8 of its size if its shorter side keeps `least` pixels.

    This takes a fraction of the work. The scale must divide both sides: otherwise the image would shrink by a slightly
    different factor, and shift after resizing. Errors are those of `open_image`.
    """
    with open_image(source) as image:
        width, height = image.size
        for scale in (8, 4, 2):
            if min(width, height) >= scale * least and width % scale == height % scale == 0:
                image.draft(None, (width // scale, height // scale))  # no effect on other formats
                break
        return PIL.ImageOps.exif_transpose(image)


def content_digest(images: Dataset, column: str = "image") -> str:
    """Digest the content of a column of images: their bytes or, of files, path, size and modification time."""
    digest = hashlib.sha256()
    for some in _references(images, column):
        for reference in some:
            if reference is None:
                digest.update(b"-")
            elif reference["bytes"] is not None:
                digest.update(hashlib.sha256(reference["bytes"]).digest())
            else:
                status = os.stat(reference["path"])
                digest.update(f"{reference['path']}|{status.st_size}|{status.st_mtime_ns};".encode())
    return digest.hexdigest()


def _references(images: Dataset, column: str) -> Iterator[list[dict | None]]:
    """Yield the images in batches, as `{"bytes": ..., "path": ...}`."""
    encoded = images.select_columns([column]).cast_column(column, Image(decode=False))
    for some in encoded.iter(batch_size=256):
        yield some[column]


def _open(reference: dict) -> PIL.Image.Image:
    return open_image(reference["path"] if reference["bytes"] is None else reference["bytes"])


def _inspect(reference: dict | None, within: Sequence[Path] | None) -> Inspection:
    if reference is None or (reference["bytes"] is None and not os.path.isfile(reference["path"] or "")):
        return Inspection("missing_image")  # also a URL: nothing is downloaded
    if within is not None and reference["bytes"] is None:
        path = Path(reference["path"]).resolve()
        if not any(path.is_relative_to(folder) for folder in within):
            return Inspection("outside_folder")  # downloaded data must not read other files of this machine
    try:
        with _open(reference) as image:
            shows_through, has_deep_greys = is_transparent(image), is_deep(image)
            if image.format == "PNG":
                image.verify()
            else:
                image.draft("L", (1, 1))  # a JPEG's smallest version; no effect on others
                image.load()
                PIL.ImageOps.exif_transpose(image, in_place=True)  # fails for broken tags, as decoding would
    except UNDECODABLE:
        return Inspection("corrupt_image")
    return Inspection(None, shows_through, has_deep_greys)
