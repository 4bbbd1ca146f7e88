"""Checking an image finds exactly what decoding it would find; conversion to RGB; digests."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zlib

import numpy as np
import PIL.Image
import pytest
from datasets import Dataset, Features, Image

from repair_hf.pairs.images import UNDECODABLE, content_digest, equal_pixels, in_rgb, inspect_images, redraw

TURNED = PIL.Image.Exif()
TURNED[PIL.Image.ExifTags.Base.Orientation] = 6


def encode(image: PIL.Image.Image, form: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def dataset(files: list[bytes]) -> Dataset:
    return Dataset.from_dict({"image": files}, features=Features({"image": Image(decode=False)}))


def can_be_decoded(data: bytes) -> bool:
    try:
        Image().decode_example({"bytes": data, "path": None}).convert("RGB")
    except UNDECODABLE:
        return False
    return True


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"])
def test_finds_what_cannot_be_decoded_and_nothing_else(form):
    """Files cut at random places or with random bytes changed."""
    rng = random.Random(form)
    pixels = np.random.default_rng(0).integers(0, 256, (24, 30, 3), dtype=np.uint8)
    whole = encode(PIL.Image.fromarray(pixels), form, exif=TURNED)
    files = [whole]
    for _ in range(60):
        files.append(whole[: rng.randrange(len(whole))])
        spoiled = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            spoiled[rng.randrange(len(whole))] = rng.randrange(256)
        files.append(bytes(spoiled))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of broken metadata
        found = [look.problem is None for look in inspect_images(dataset(files), [])]
        decodable = [can_be_decoded(data) for data in files]
    assert found[0]
    assert sum(found) < len(found) - 50
    if form == "PNG":  # a wrong checksum is a fault even where a decoder does not look at it
        assert not any(good and not able for good, able in zip(found, decodable, strict=True))
    else:
        assert found == decodable


def as_png(rows: bytes, header: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """A PNG file of these bytes, in two pieces; only its checksums are sure to be right."""
    data = zlib.compress(rows)
    chunks = [(b"IHDR", header), *more, (b"IDAT", data[:9]), (b"IDAT", data[9:]), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(each)) + kind + each + struct.pack(">I", zlib.crc32(kind + each))
        for kind, each in chunks
    )


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA", "I;16", "interlaced"])
def test_a_png_of_too_few_rows_is_found(mode):
    """Pillow decodes it, and leaves the rest empty."""
    n_bytes, row, header, more = 79, 9, struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 1), []
    if mode != "interlaced":  # that has seven passes of 1x1, 1x1, 2x1, 2x2, 4x2, 4x4 and 8x4 pixels
        whole = encode(PIL.Image.new(mode, (13, 9)), "PNG")
        header, more = whole[16:29], [(b"PLTE", bytes(48))] if mode == "P" else []
        start = whole.index(b"IDAT")
        n_bytes = len(zlib.decompress(whole[start + 4 : start + 4 + int.from_bytes(whole[start - 4 : start])]))
        row = n_bytes // 9
    rows = bytes(np.random.default_rng(0).integers(0, 2, n_bytes, dtype=np.uint8))
    files = [as_png(rows[: len(rows) - lost], header, *more) for lost in (0, row, 2 * row, 4 * row)]
    assert all(map(can_be_decoded, files))
    assert [look.problem for look in inspect_images(dataset(files), [])] == [None, *["corrupt_image"] * 3]


def test_files_may_have_to_lie_in_given_folders(tmp_path):
    for name in ("fetched", "private"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(encode(PIL.Image.new("RGB", (8, 8)), "PNG"))
    (tmp_path / "fetched" / "link.png").symlink_to(tmp_path / "private" / "x.png")
    names = ["fetched/x.png", "private/x.png", "fetched/../private/x.png", "fetched/link.png"]
    found = inspect_images(dataset([str(tmp_path / name) for name in names]), [tmp_path / "fetched"])
    assert [look.problem for look in found] == [None, *["outside_folder"] * 3]


def test_finds_a_broken_note_on_which_way_is_up():
    whole = encode(PIL.Image.new("RGB", (8, 8)), "WEBP", exif=TURNED)
    files = [whole, whole.replace(b"MM\0*", b"XX\0*").replace(b"II*\0", b"XX*\0")]
    assert [look.problem for look in inspect_images(dataset(files), [])] == [None, "corrupt_image"]
    assert [can_be_decoded(data) for data in files] == [True, False]


@pytest.mark.parametrize("form", ["JPEG", "WEBP", "PNG"])
def test_a_tag_of_the_wrong_type_in_a_picture_to_be_turned(form):
    orientation = b"\x01\x12\0\3\0\0\0\1\0\6\0\0"
    maker = b"\x01\x0f\0\5\0\0\0\1\0\0\0\x26"  # a fraction, not a text
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\2" + maker + orientation + b"\0\0\0\0" + b"\0\0\0\1\0\0\0\1"
    data = encode(PIL.Image.new("RGB", (8, 8)), form, exif=exif)
    assert not can_be_decoded(data)
    assert [look.problem for look in inspect_images(dataset([data]), [])] == ["corrupt_image"]


def test_refuses_a_decompression_bomb(monkeypatch):
    data = encode(PIL.Image.new("1", (300, 300)), "PNG")
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    assert inspect_images(dataset([data]), [])[0].problem == "too_large_image"


def test_tells_which_images_show_through():
    clear, palette = PIL.Image.new("RGBA", (4, 4)), PIL.Image.new("RGB", (4, 4)).quantize(2)
    plain = PIL.Image.new("RGB", (4, 4))
    files = [encode(image, "PNG") for image in (plain, palette, clear, clear.convert("LA"))]
    files += [encode(palette, "PNG", transparency=0), encode(plain, "JPEG")]
    assert [look.is_transparent for look in inspect_images(dataset(files), [])] == [
        False,
        False,
        True,
        True,
        True,
        False,
    ]


def test_equal_pixels_are_found_in_files_of_other_bytes():
    """The last two JPEGs are equally bright everywhere, so their smallest versions are equal."""
    rng = np.random.default_rng(0)
    grey = PIL.Image.fromarray(np.full((16, 24), 90, np.uint8))
    noise = PIL.Image.fromarray(rng.integers(0, 256, (16, 24, 3), dtype=np.uint8))
    colours = [PIL.Image.merge("YCbCr", [grey, grey.point(lambda _, blue=blue: blue), grey]) for blue in (60, 200)]
    files = [encode(noise, "PNG"), encode(noise, "PNG", compress_level=0), encode(noise, "BMP")]
    files += [encode(noise.quantize(9), "PNG"), encode(noise.quantize(9).convert("RGB"), "PNG")]
    files += [encode(noise, "JPEG"), encode(noise, "JPEG", comment=b"x"), encode(noise, "JPEG", quality=50)]
    files += [encode(image, "JPEG", subsampling=0) for image in colours]
    looks = [look.look for look in inspect_images(dataset(files), [])]
    assert looks[-1] == looks[-2]
    images = dataset(files).cast_column("image", Image(mode="RGB"))
    assert equal_pixels(images, looks).tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (np.array([[0, 257 * 100], [257 * 200, 65535]], np.uint16), "PNG"),
        (np.array([[0, 257 * 100], [257 * 200, 65535]], np.uint16), "TIFF"),
        (np.array([[0, 257 * 100], [257 * 200, 65535]], np.int32), "TIFF"),
        (np.array([[-1000, 99000], [199000, 254000]], np.int32), "TIFF"),  # beyond 16 bits
        (np.array([[0, 100 / 255], [200 / 255, 1]], np.float32), "TIFF"),
        (np.array([[np.nan, 100], [200, 255]], np.float32), "TIFF"),
    ],
)
def test_deep_greys_are_scaled_and_not_cut_off(values, form):
    data = encode(PIL.Image.fromarray(values), form)
    assert inspect_images(dataset([data]), [])[0].is_deep
    (found,) = redraw(dataset([data]), {0})["image"]
    for image in (PIL.Image.open(io.BytesIO(found["bytes"])), in_rgb(PIL.Image.open(io.BytesIO(data)))):
        assert image.mode == "RGB"
        assert np.asarray(image)[..., 1].tolist() == [[0, 100], [200, 255]]


def test_a_dark_deep_grey_stays_dark_and_its_transparent_value_turns_white():
    assert in_rgb(PIL.Image.fromarray(np.full((2, 2), 128, np.float32))).getpixel((0, 0)) == (0, 0, 0)
    data = encode(PIL.Image.fromarray(np.array([[5, 6], [257, 514]], np.uint16)), "PNG", transparency=6)
    assert np.asarray(in_rgb(PIL.Image.open(io.BytesIO(data))))[..., 0].tolist() == [[0, 255], [1, 2]]


def test_only_the_named_rows_are_redrawn_on_white():
    files = [encode(PIL.Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "PNG")] * 2
    first, second = redraw(dataset(files), {1})["image"]
    assert first["bytes"] == files[0]
    image = PIL.Image.open(io.BytesIO(second["bytes"]))
    assert (image.mode, image.getpixel((0, 0))) == ("RGB", (255, 255, 255))


def test_digest_goes_by_content_and_order():
    one, other = (encode(PIL.Image.new("RGB", (4, 4), colour), "PNG") for colour in ("red", "blue"))
    assert content_digest(dataset([one, other])) == content_digest(dataset([one, other]))
    assert len({content_digest(dataset(files)) for files in ([one, other], [other, one], [one], [one, one])}) == 4
