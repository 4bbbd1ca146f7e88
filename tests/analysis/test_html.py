from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from jinja2 import UndefinedError
from PIL import Image

from repair_hf.analysis.html import data_uri, environment

SCRIPT = "<script>alert('x')</script>"


def opened(uri: str) -> Image.Image:
    head, _, data = uri.partition(",")
    assert head == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_a_drawing_is_kept_as_it_is():
    drawing = Image.new("RGBA", (40, 30), "red")
    shown = opened(data_uri(drawing))
    assert shown.size == (40, 30) and shown.convert("RGB").getcolors() == [(1200, (255, 0, 0))]


def test_a_large_picture_is_made_smaller_and_its_own_size_stays():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (400, 800, 3), dtype=np.uint8))
    uri = data_uri(noise, side=200)
    assert opened(uri).size == (200, 100) and noise.size == (800, 400)
    lossless = io.BytesIO()
    noise.resize((200, 100), Image.Resampling.LANCZOS).save(lossless, "WEBP", lossless=True)
    assert len(uri) < len(lossless.getvalue()) / 2


@pytest.mark.parametrize(
    "place", ["{{ value }}", '<i title="{{ value }}">', "{{ pieces.marked(word_diff('', value)) }}"]
)
def test_a_value_is_text(place):
    page = environment().from_string('{% import "pieces.html" as pieces %}' + place).render(value=SCRIPT + '" x="')
    assert "<script" not in page and '" x="' not in page
    assert "&lt;script&gt;" in page


def test_a_difference_is_marked():
    template = '{% import "pieces.html" as pieces %}{{ pieces.marked(word_diff("a red dog", "a <b> dog")) }}'
    assert environment().from_string(template).render() == (
        '<bdi class="text">a <del>red</del> <ins>&lt;b&gt;</ins> dog</bdi>'
    )


def test_a_missing_value_is_an_error():
    with pytest.raises(UndefinedError, match="absent"):
        environment().from_string("{{ absent }}").render()


def test_a_page_may_fetch_nothing_and_run_nothing():
    page = environment().get_template("page.html").render()
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in page
    assert "http" not in page.replace("http-equiv", "")
