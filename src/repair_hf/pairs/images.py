"""Check image files, convert images to RGB, and digest their content.

Broken files must be found early, so every image is decoded. A JPEG is decoded to its smallest version: that reads all
of its data, and takes a third of the time.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL.Image
import PIL.ImageOps
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, Image
from huggingface_hub import cached_assets_path

from repair_hf.pairs.tables import CELLS_PER_READ, cells_of
from repair_hf.runtime.progress import Progress
from repair_hf.runtime.redaction import printable

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
MAX_RATIO = 100  # of the sides; a processor that resizes the shorter side to 384 makes 15 million pixels of it
REDRAWN_AT_ONCE = 50  # images in memory
ABSENT = "absent"  # the look of a cell without an image
THREADS = 8  # opening files waits mostly for the disk


class TooLarge(OSError):
    """An image that would take too much memory."""


class Inspection(NamedTuple):
    """The result of checking one image."""

    problem: str | None  # a key of `KINDS`
    is_transparent: bool = False
    is_deep: bool = False
    look: str = ""  # equal for files of one format that have equal pixels, seldom for others; empty if unknown


def inspect_images(images: Dataset, column: str = "image") -> list[Inspection]:
    """Check each image of a column by decoding it."""
    found: list[Inspection] = []
    with (
        ThreadPoolExecutor(THREADS) as threads,
        Progress(total=len(images), desc="Checking images", unit=" images", delay=3) as bar,
    ):
        for batch in undecoded(images, column).iter(CELLS_PER_READ):
            found += threads.map(_inspect, batch[column])
            bar.update(len(batch[column]))
    return found


def undecoded(rows: Dataset, column: str) -> Dataset:
    """Return an image column alone, as cells `{"bytes": ..., "path": ...}`."""
    return rows.select_columns([column]).cast_column(column, Image(decode=False))


def equal_cells(images: Dataset) -> list[int]:
    """Number images: files and cells of equal bytes share a number; no others do."""
    keys: list[Any] = []
    for row, file in enumerate(uncopied(images, "image")):
        if isinstance(file, pa.Buffer):
            keys.append(file.size)
        elif file and os.path.isfile(file):  # a device or a pipe may never end
            keys.append(os.path.getsize(file))
        else:
            keys.append(os.path.normpath(file) if file else f"{row}\0")
    often = Counter(keys)
    doubtful = [row for row, key in enumerate(keys) if often[key] > 1 and isinstance(key, int)]
    for row, file in zip(doubtful, uncopied(images.select(doubtful), "image"), strict=True):
        try:
            with pa.BufferReader(file) if isinstance(file, pa.Buffer) else open(str(file), "rb") as content:
                keys[row] = hashlib.sha256(content.read()).digest()
        except OSError:
            keys[row] = os.path.normpath(str(file))
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def uncopied(rows: Dataset, column: str) -> Iterator[pa.Buffer | str | None]:
    """Yield each image of a column: its bytes, without a copy of them, or its path; None for an absent cell."""
    for cells in cells_of(rows, column):
        for is_there, content, path in zip(
            cells.is_valid(), pc.struct_field(cells, "bytes"), pc.struct_field(cells, "path"), strict=True
        ):
            file = content.as_buffer() if content.is_valid else path.as_py() or ""
            yield file if is_there.as_py() else None


def equal_pixels(images: Dataset, looks: Sequence[str]) -> np.ndarray:
    """Number images, (N,): those of equal pixels share a number. Only images of equal looks are decoded.

    A JPEG is compared with other JPEGs alone, because decoders round differently.
    """
    often, numbers = Counter(looks), dict[int | bytes, int]()
    keys = (_pixel_digest(images[row]["image"]) if often[look] > 1 else row for row, look in enumerate(looks))
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def redraw(images: Dataset) -> Dataset:
    """Return the `in_rgb` versions of some images, so that every reader sees the same pixels.

    They are kept in the cache, not in memory.
    """
    file = cached_assets_path("repair_hf", "redrawn") / f"{content_digest(images)}.arrow"
    title = "Drawing images in plain RGB"
    return images.map(
        _drawn, features=images.features, cache_file_name=str(file), writer_batch_size=REDRAWN_AT_ONCE, desc=title
    )


def _drawn(row: dict) -> dict:
    with open_cell(row["image"]) as image:
        image = in_rgb(PIL.ImageOps.exif_transpose(image))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return {"image": {"bytes": buffer.getvalue(), "path": row["image"]["path"]}}


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


def open_image(source: bytes | pa.Buffer | str) -> PIL.Image.Image:
    """Open an image file, or its bytes, without decoding it yet.

    Raises:
        TooLarge: If its file, its pixels or the ratio of its sides are beyond the limits.
        OSError: If it is not in one of `FORMATS`. For other errors see `UNDECODABLE`.
    """
    size = os.path.getsize(source) if isinstance(source, str) else len(source)
    if size > MAX_BYTES:
        raise TooLarge(f"the file has {size:,} bytes; at most {MAX_BYTES:,} are read")
    try:
        file: Any = io.BytesIO(source) if isinstance(source, bytes) else source
        image = PIL.Image.open(pa.BufferReader(file) if isinstance(file, pa.Buffer) else file, formats=FORMATS)
    except PIL.Image.DecompressionBombError as error:
        raise TooLarge(str(error)) from error
    pixels, sides = image.width * image.height, sorted(image.size)
    if pixels > MAX_PIXELS or sides[1] > MAX_RATIO * sides[0]:
        image.close()
        limits = f"at most {MAX_PIXELS:,}, and sides of 1 to {MAX_RATIO}, are decoded"
        raise TooLarge(f"the image has {image.width:,} x {image.height:,} pixels; {limits}")
    return image


def open_cell(cell: dict) -> PIL.Image.Image:
    """Open a cell that `inspect_images` found usable; errors are those of `open_image`."""
    return open_image(cell["path"] if cell["bytes"] is None else cell["bytes"])


def read_cell(cell: dict) -> bytes:
    """Return the file of such a cell, which is never an address.

    Raises:
        OSError: If there is no such file, or it is too large.
    """
    if cell["bytes"] is not None:
        return cell["bytes"]
    if not os.path.isfile(cell["path"] or ""):  # a device or a pipe may never end
        raise FileNotFoundError(f"'{printable(str(cell['path']))}' is not an image file on this machine")
    if (size := os.path.getsize(cell["path"])) > MAX_BYTES:
        raise TooLarge(f"{cell['path']} has {size:,} bytes; at most {MAX_BYTES:,} are read")
    return Path(cell["path"]).read_bytes()


def content_digest(images: Dataset, column: str = "image") -> str:
    """Digest the content of a column of images: their bytes or, of files, path, size and modification time."""
    digest = hashlib.sha256()
    for batch in undecoded(images, column).iter(CELLS_PER_READ):
        for cell in batch[column]:
            if cell is None:
                digest.update(b"-")
            elif cell["bytes"] is not None:
                digest.update(hashlib.sha256(cell["bytes"]).digest())
            else:
                status = os.stat(cell["path"])
                digest.update(f"{cell['path']}|{status.st_size}|{status.st_mtime_ns};".encode())
    return digest.hexdigest()


def _inspect(cell: dict | None) -> Inspection:
    """Decode an image and digest what it looks like, or say why it cannot be used."""
    if cell is None or (cell["bytes"] is None and not cell["path"]):
        return Inspection("missing_image", look=ABSENT)
    if cell["bytes"] is None and not os.path.isfile(cell["path"]):  # a device or a pipe may never end
        return Inspection("missing_image")
    try:
        with ExitStack() as opened:
            file = cell["path"] if cell["bytes"] is None else cell["bytes"]
            image = opened.enter_context(open_image(file))
            if image.format == "PNG":
                image.verify()  # the checksums, at which a decoder does not look; the image cannot be decoded after it
                image = opened.enter_context(open_image(file))
            is_jpeg = image.format == "JPEG"
            has_alpha, has_depth = is_transparent(image), is_deep(image)
            image.draft("L", (1, 1))  # a JPEG's smallest version; no effect on others
            image.load()
            PIL.ImageOps.exif_transpose(image, in_place=True)  # fails for broken tags
            look = f"{is_jpeg} {_pixel_digest(image if is_jpeg else in_rgb(image)).hex()}"
            return Inspection(None, has_alpha, has_depth, look)
    except TooLarge:
        return Inspection("too_large_image")
    except UNDECODABLE:
        return Inspection("corrupt_image")


def _pixel_digest(image: PIL.Image.Image) -> bytes:
    return hashlib.sha256(repr(image.size).encode() + image.tobytes()).digest()
