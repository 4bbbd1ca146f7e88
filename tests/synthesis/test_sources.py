"""Images on their way to a provider: small PNGs untouched, the rest upright JPEG, broken ones refused."""

from __future__ import annotations

import base64
import io

import datasets
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from repair_hf.synthesis.sources import LONGEST_SIDE, SourceImages, UnreadableImage


def sources_of(*cells: dict | str) -> SourceImages:
    features = datasets.Features({"image": datasets.Image()})
    return SourceImages(datasets.Dataset.from_dict({"image": list(cells)}, features=features))


def encoded(image: Image.Image, format: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def sent(sources: SourceImages, index: int = 0) -> tuple[str, bytes]:
    head, _, body = sources.url(index).partition(";base64,")
    return head, base64.b64decode(body)


def test_sends_a_small_png_with_its_metadata(tmp_path):
    notes = PngInfo()
    notes.add_text("scene", "a red circle")
    data = encoded(Image.new("RGB", (8, 8), "red"), "PNG", pnginfo=notes)
    (tmp_path / "a.png").write_bytes(data)
    sources = sources_of({"bytes": data, "path": None}, str(tmp_path / "a.png"))
    assert sent(sources, 0) == sent(sources, 1) == ("data:image/png", data)
    assert sources.picture(0).info["scene"] == "a red circle"


def test_sends_a_photograph_upright_and_without_its_exif():
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "the camera's maker"  # orientation: turn by 90 degrees
    data = encoded(Image.new("RGB", (40, 20), "red"), "JPEG", exif=exif)
    head, body = sent(sources_of({"bytes": data, "path": None}))
    image = Image.open(io.BytesIO(body))
    assert head == "data:image/jpeg" and image.size == (20, 40)
    assert not image.getexif() and b"maker" not in body


@pytest.mark.parametrize("image", [Image.new("L", (LONGEST_SIDE + 50, 30)), Image.new("RGBA", (30, LONGEST_SIDE * 2))])
def test_shrinks_what_is_large(image):
    head, body = sent(sources_of({"bytes": encoded(image, "PNG"), "path": None}))
    assert head == "data:image/jpeg" and max(Image.open(io.BytesIO(body)).size) == LONGEST_SIDE


def test_makes_a_url_once(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(encoded(Image.new("RGB", (8, 8)), "PNG"))
    sources = sources_of(str(path))
    first = sources.url(0)
    path.unlink()
    assert sources.url(0) is first


@pytest.mark.parametrize("damage", ["missing", "cut off", "garbage", "empty", "bad checksum"])
def test_refuses_a_broken_image(damage, tmp_path):
    noise = Image.effect_noise((64, 64), 50).convert("RGB")
    good = encoded(noise, "PNG")
    broken = {"cut off": good[: len(good) // 2], "garbage": b"not an image", "empty": b"",
              "bad checksum": good[:200] + b"\xff\xff" + good[202:]}  # fmt: skip
    path = tmp_path / "a.png"
    if damage in broken:
        path.write_bytes(broken[damage])
    with pytest.raises(UnreadableImage):
        sources_of(str(path)).url(0)


def test_names_an_image_by_its_bytes():
    red, blue = (encoded(Image.new("RGB", (4, 4), colour), "PNG") for colour in ("red", "blue"))
    sources = sources_of(*({"bytes": data, "path": None} for data in (red, blue, red)))
    assert sources.digest(0) == sources.digest(2) != sources.digest(1)
