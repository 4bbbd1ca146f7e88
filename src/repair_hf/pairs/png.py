"""Find PNG files with too few rows, which Pillow accepts: it leaves the missing rows empty."""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator

from PIL.Image import Image

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type
# Adam7: the first column and row of each pass, and the steps between its columns and rows
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
MOST = 2**20  # bytes decompressed at once


def may_lack_rows(image: Image) -> bool:
    """Return whether rows may be missing from a decoded PNG: its last row is empty, or it is interlaced."""
    last = image.crop((0, image.height - 1, image.width, image.height))
    return bool(image.info.get("interlace")) or not any(last.tobytes())


def lacks_rows(file: bytes) -> bool:
    """Return whether the data of a PNG file that Pillow has decoded are fewer than its header announces."""
    missing, inflate = 0, zlib.decompressobj()
    for kind, data in _chunks(io.BytesIO(file)):
        if kind == b"IHDR":
            missing = _size(*struct.unpack(">IIBBxxB", data[:13]))
        while kind == b"IDAT" and data and missing > 0:
            missing -= len(inflate.decompress(data, MOST))
            data = inflate.unconsumed_tail
    return missing > len(inflate.flush())


def _chunks(stream: io.BytesIO) -> Iterator[tuple[bytes, bytes]]:
    stream.seek(8)
    while len(head := stream.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        yield kind, stream.read(length)
        stream.seek(4, io.SEEK_CUR)  # the checksum


def _size(width: int, height: int, bits: int, colours: int, is_interlaced: int) -> int:
    """Return the number of bytes of all rows, each with the byte that names its filter."""
    passes = PASSES if is_interlaced else ((0, 0, 1, 1),)
    sizes = [(math.ceil((width - x) / dx), math.ceil((height - y) / dy)) for x, y, dx, dy in passes]
    return sum(
        rows * (1 + math.ceil(columns * bits * CHANNELS[colours] / 8)) for columns, rows in sizes if columns > 0
    )
