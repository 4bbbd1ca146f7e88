"""Images on their way to a provider: encoded again without metadata, at the requested size; harmful files fail."""

from __future__ import annotations

import base64
import io
import struct
import tracemalloc
import zlib

import datasets
import pytest
from PIL import Image, PngImagePlugin
from PIL.PngImagePlugin import PngInfo

from repair_hf.pairs.images import MAX_BYTES, MAX_PIXELS, inspect_images
from repair_hf.synthesis.sources import LONGEST_SIDE, SMALL_PNG, SourceImages, UnreadableImage, open_picture


def images_of(*cells: dict | str) -> datasets.Dataset:
    features = datasets.Features({"image": datasets.Image()})
    return datasets.Dataset.from_dict({"image": list(cells)}, features=features)


def sources_of(*cells: dict | str, **options) -> SourceImages:
    return SourceImages(images_of(*cells), **options)


def noise(size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.merge("RGB", [Image.effect_noise(size, 90) for _ in range(3)])


def pixels(data: bytes) -> bytes:
    return Image.open(io.BytesIO(data)).tobytes()


def encoded(image: Image.Image, format: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def sent(sources: SourceImages, index: int = 0) -> tuple[str, bytes]:
    head, _, body = sources.url(index).url.partition(";base64,")
    return head, base64.b64decode(body)


def test_a_small_png_stays_a_png_with_the_toy_worlds_scene_and_nothing_else(tmp_path):
    notes = PngInfo()
    notes.add_text("scene", "a red circle")
    notes.add_text("Author", "the painter's name")
    notes.add_itxt("XML:com.adobe.xmp", "the painter's street")
    exif = Image.Exif()
    exif[0x010F] = "the camera's maker"
    data = encoded(noise(), "PNG", pnginfo=notes, exif=exif, icc_profile=b"the painter's screen") + b"the end and more"
    assert all(word in data for word in (b"painter", b"maker", b"and more"))
    (tmp_path / "a.png").write_bytes(data)
    sources = sources_of({"bytes": data, "path": None}, str(tmp_path / "a.png"))
    head, body = sent(sources)
    assert (head, body) == sent(sources, 1) and head == "data:image/png"
    assert b"tEXtscene\0a red circle" in body
    assert not any(word in body for word in (b"painter", b"maker", b"and more"))
    assert pixels(body) == pixels(data) and Image.open(io.BytesIO(body)).info == {"scene": "a red circle"}
    assert sources.picture(0).info == {"scene": "a red circle"}


def test_sends_a_photograph_upright_and_without_its_metadata():
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "the camera's maker"  # orientation: turn by 90 degrees
    exif.get_ifd(0x8825)[1] = "N"  # a place on the map
    data = encoded(noise((40, 20)), "JPEG", exif=exif, comment=b"a remark", icc_profile=b"a profile", xmp=b"a <xmp/>")
    head, body = sent(sources_of({"bytes": data, "path": None}))
    image = Image.open(io.BytesIO(body))
    assert head == "data:image/jpeg" and image.size == (20, 40)
    assert set(image.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"} and not image.getexif()
    assert not any(word in body for word in (b"maker", b"remark", b"profile", b"xmp"))


@pytest.mark.parametrize(
    ("image", "options", "size"),
    [
        (Image.new("RGBA", (30, 2 * LONGEST_SIDE)), {}, (15, LONGEST_SIDE)),
        (Image.new("L", (600, 300)), {"longest_side": 384}, (384, 192)),
        (Image.new("RGB", (600, 300)), {"longest_side": 900}, (600, 300)),
    ],
)
def test_shrinks_what_is_larger_than_the_option_allows(image, options, size):
    _, body = sent(sources_of({"bytes": encoded(image, "PNG"), "path": None}, **options))
    assert Image.open(io.BytesIO(body)).size == size


def test_a_large_png_becomes_a_jpeg():
    data = encoded(noise((400, 400)), "PNG")
    assert len(data) > SMALL_PNG and sent(sources_of({"bytes": data, "path": None}))[0] == "data:image/jpeg"


def test_makes_a_url_once(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encoded(Image.new("RGB", (8, 8)), "PNG"))
    sources = sources_of(str(path))
    first = sources.url(0)
    url = first.url
    path.unlink()
    assert sources.url(0) is first and first.url is url


def test_what_shows_through_is_laid_on_white():
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (90, 90, 90, 255))
    picture = open_picture(encoded(image, "PNG"))
    assert [picture.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (90, 90, 90)]


GOOD = encoded(noise((64, 64)), "PNG")


@pytest.mark.parametrize(
    "data", [None, GOOD[: len(GOOD) // 2], b"not an image", b"", GOOD[:200] + b"\xff\xff" + GOOD[202:]]
)
def test_refuses_a_broken_image(data, tmp_path):
    path = tmp_path / "a.png"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UnreadableImage):
        sent(sources_of(str(path)))


def test_names_an_image_by_its_bytes():
    red, blue = (encoded(Image.new("RGB", (4, 4), colour), "PNG") for colour in ("red", "blue"))
    sources = sources_of(*({"bytes": data, "path": None} for data in (red, blue, red)))
    assert sources.digest(0) == sources.digest(2) != sources.digest(1)


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few hundred bytes that promises so many pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(100_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def compressed_text() -> bytes:
    """A PNG whose text chunk unfolds to a hundred times its size."""
    notes = PngInfo()
    notes.add_text("note", "a" * (PngImagePlugin.MAX_TEXT_CHUNK + 1), zip=True)
    return encoded(Image.new("RGB", (8, 8)), "PNG", pnginfo=notes)


HARMFUL = {
    "more pixels than fit": (bomb(MAX_PIXELS // 1000 + 1, 1000), "pixels; at most"),
    "far more pixels than fit": (bomb(2**31 - 1, 2**31 - 1), "decompression bomb"),
    "a text that unfolds": (compressed_text(), "too large"),
    "a program": (encoded(Image.new("RGB", (8, 8)), "EPS"), "cannot identify"),
    "too many bytes": (encoded(Image.new("RGB", (8, 8)), "PNG") + bytes(MAX_BYTES), "bytes; at most"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("what", HARMFUL)
def test_what_could_do_harm_is_not_decoded(what, tmp_path):
    data, complaint = HARMFUL[what]
    (tmp_path / "a.png").write_bytes(data)
    tracemalloc.start()
    with pytest.raises(UnreadableImage, match=complaint):
        open_picture(data)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    with pytest.raises(UnreadableImage, match="at most" if what == "too many bytes" else complaint):
        sent(sources_of(str(tmp_path / "a.png")))
    looked_at = inspect_images(images_of({"bytes": data, "path": None}))
    assert looked_at[0].problem == ("too_large_image" if "more" in what or "many" in what else "corrupt_image")


@pytest.mark.parametrize("path", ["/dev/zero", "http://127.0.0.1:9/a.png"])
def test_a_path_that_never_ends_is_not_read_and_an_address_not_fetched(path):
    with pytest.raises(UnreadableImage, match="not an image file"):
        sources_of(path).file(0)


def test_an_image_is_that_of_its_row_in_a_selection():
    images = images_of(*({"bytes": bytes([number]), "path": None} for number in range(4)))
    assert [SourceImages(images.select([3, 1])).file(row) for row in range(2)] == [b"\3", b"\1"]
