"""Checking an image finds exactly what decoding it would find; conversion to RGB; digests."""

from __future__ import annotations

import io
import random
import warnings

import numpy as np
import PIL.Image
import pyarrow as pa
import pytest
from datasets import Dataset, Features, Image, load_from_disk

from repair_hf.pairs.dataset import load_pairs
from repair_hf.pairs.images import UNDECODABLE, equal_pixels, in_rgb, inspect_images, redraw, undecoded

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
        found = [look.problem is None for look in inspect_images(dataset(files))]
        decodable = [can_be_decoded(data) for data in files]
    assert found[0]
    assert sum(found) < len(found) - 50
    if form == "PNG":  # a wrong checksum is a fault even where a decoder does not look at it
        assert not any(good and not able for good, able in zip(found, decodable, strict=True))
    else:
        assert found == decodable


def test_finds_a_broken_note_on_which_way_is_up():
    whole = encode(PIL.Image.new("RGB", (8, 8)), "WEBP", exif=TURNED)
    files = [whole, whole.replace(b"MM\0*", b"XX\0*").replace(b"II*\0", b"XX*\0")]
    assert [look.problem for look in inspect_images(dataset(files))] == [None, "corrupt_image"]
    assert [can_be_decoded(data) for data in files] == [True, False]


@pytest.mark.parametrize("form", ["JPEG", "WEBP", "PNG"])
def test_a_tag_of_the_wrong_type_in_a_picture_to_be_turned(form):
    orientation = b"\x01\x12\0\3\0\0\0\1\0\6\0\0"
    maker = b"\x01\x0f\0\5\0\0\0\1\0\0\0\x26"  # a fraction, not a text
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\2" + maker + orientation + b"\0\0\0\0" + b"\0\0\0\1\0\0\0\1"
    data = encode(PIL.Image.new("RGB", (8, 8)), form, exif=exif)
    assert not can_be_decoded(data)
    assert [look.problem for look in inspect_images(dataset([data]))] == ["corrupt_image"]


def test_refuses_a_decompression_bomb(monkeypatch):
    data = encode(PIL.Image.new("1", (300, 300)), "PNG")
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    assert inspect_images(dataset([data]))[0].problem == "too_large_image"


def test_tells_which_images_show_through():
    clear, palette = PIL.Image.new("RGBA", (4, 4)), PIL.Image.new("RGB", (4, 4)).quantize(2)
    plain = PIL.Image.new("RGB", (4, 4))
    files = [encode(image, "PNG") for image in (plain, palette, clear, clear.convert("LA"))]
    files += [encode(palette, "PNG", transparency=0), encode(plain, "JPEG")]
    assert [look.is_transparent for look in inspect_images(dataset(files))] == [False, False, True, True, True, False]


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
    looks = [look.look for look in inspect_images(dataset(files))]
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
    assert inspect_images(dataset([data]))[0].is_deep
    (found,) = redraw(dataset([data]))["image"]
    for image in (PIL.Image.open(io.BytesIO(found["bytes"])), in_rgb(PIL.Image.open(io.BytesIO(data)))):
        assert image.mode == "RGB"
        assert np.asarray(image)[..., 1].tolist() == [[0, 100], [200, 255]]


def test_a_dark_deep_grey_stays_dark_and_its_transparent_value_turns_white():
    assert in_rgb(PIL.Image.fromarray(np.full((2, 2), 128, np.float32))).getpixel((0, 0)) == (0, 0, 0)
    data = encode(PIL.Image.fromarray(np.array([[5, 6], [257, 514]], np.uint16)), "PNG", transparency=6)
    assert np.asarray(in_rgb(PIL.Image.open(io.BytesIO(data))))[..., 0].tolist() == [[0, 255], [1, 2]]


def test_a_transparent_image_leaves_the_others_where_they_are(tmp_path):
    """Only the transparent one is drawn anew, into the cache; the others stay on disk as they are."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (20, 128, 128, 3), dtype=np.uint8)
    files = [encode(PIL.Image.fromarray(each), "PNG", compress_level=1) for each in noise]
    large = PIL.Image.fromarray(rng.integers(0, 256, (400, 400, 3), dtype=np.uint8)).convert("RGBA")
    large.putpixel((0, 0), (255, 0, 0, 0))
    files.insert(3, encode(large, "PNG"))
    columns = {"image": files, "caption": [f"caption {k}" for k in range(21)]}
    Dataset.from_dict(columns).cast_column("image", Image()).save_to_disk(tmp_path / "rows")
    data, before = load_from_disk(str(tmp_path / "rows")), pa.total_allocated_bytes()
    pairs = load_pairs(data, split="all")
    assert pa.total_allocated_bytes() - before < sum(map(len, files)) / 4
    assert [
        cell["bytes"] == file for cell, file in zip(undecoded(pairs.images, "image")["image"], files, strict=True)
    ] == [k != 3 for k in range(21)]
    assert pairs.images[3]["image"].getpixel((0, 0)) == (255, 255, 255)
    assert pairs.images["image_id"][:] == [f"train-{k:07d}" for k in range(21)]
    assert load_pairs(data, split="all").fingerprint == pairs.fingerprint
