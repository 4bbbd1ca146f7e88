from __future__ import annotations

import base64
import io
import re
import shutil
import subprocess

import numpy as np
import pytest
from datasets import Dataset
from jinja2 import UndefinedError
from PIL import Image

from repair_hf.analysis.pages import data_uri, environment, gallery, render
from repair_hf.analysis.record_sample import RecordSample, sample_records
from repair_hf.records.dataset import DROPPED_FEATURES

ATTACK = (
    "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">\"' autofocus onfocus=1 "
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def row(repaired: Dataset, direction: str, **others) -> dict:
    return next(each for each in repaired if each["direction"] == direction) | others


def page(*rows: dict) -> str:
    return gallery(RecordSample(list(rows), {direction: 3 for direction in ("t2i", "i2t")}))


def test_every_picture_and_caption_of_a_record_is_there(repaired):
    shown = gallery(sample_records(repaired, n=4))
    images = re.findall(r'<img src="data:image/webp;base64,[\w+/=]+"', shown)
    assert len(images) == 2  # the edits; the rest was left out
    assert shown.count("left out of these records") == 2 * 2 + 2
    for each in sample_records(repaired, n=4).rows:
        assert each["record_id"] in shown and each["q_id"] in shown
    assert "2 of 12" in shown


def test_what_the_edit_changed_is_marked(repaired):
    shown = page(row(repaired, "i2t", fp_text="a red dog", edit_text="a blue dog"))
    assert "a <del>red</del> dog" in shown and "a <ins>blue</ins> dog" in shown


def test_the_chosen_candidate_and_one_that_failed_are_told(repaired):
    shown = page(row(repaired, "i2t", candidate_similarities=[None, 0.5, 0.25], candidate=1))
    assert "failed or changed nothing · [0.500] · 0.250" in shown


def test_a_dropped_failure_says_why(repaired):
    failure = dict.fromkeys(DROPPED_FEATURES) | {"direction": "i2t", "q_id": "q", "gt_text": "a", "fp_text": "b"}
    shown = page(failure | {"reason": "llm_refused", "detail": "not that one"})
    assert "the LLM refused to answer. not that one" in shown and "Dropped failures" in shown
    assert ">edit<" not in shown and "rewritten to fit it" not in shown


def attacked(repaired: Dataset) -> str:
    """A page of records of which every text is an attack."""
    rows = []
    for direction in ("t2i", "i2t"):
        each = row(repaired, direction)
        texts = [name for name, cell in each.items() if isinstance(cell, str) and name != "direction"]
        rows.append(
            each
            | dict.fromkeys([*texts, "gt_reason", "fp_reason", "edit_instruction"], ATTACK)
            | {"error_types": [ATTACK]}
        )
    return page(*rows)


def test_no_text_becomes_a_tag(repaired):
    shown = attacked(repaired)
    assert "<script" not in shown and "<img src=x" not in shown and "&lt;script&gt;" in shown


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_runs_nothing_of_it(repaired, tmp_path):
    attack, control = tmp_path / "attack.html", tmp_path / "control.html"
    attack.write_text(attacked(repaired), encoding="utf-8")
    control.write_text(f"<title>mine</title>{ATTACK}", encoding="utf-8")
    titles = {path.stem: re.search("<title>(.*?)</title>", _dom(path, tmp_path))[1] for path in (attack, control)}
    assert titles == {"attack": "Retrieval failures and their repairs", "control": "taken"}


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_would_run_nothing_even_if_a_tag_slipped_through(repaired, tmp_path):
    slipped = tmp_path / "slipped.html"
    slipped.write_text(page(row(repaired, "t2i")).replace("</main>", f"{ATTACK}</main>"), encoding="utf-8")
    assert "<title>Retrieval failures and their repairs</title>" in _dom(slipped, tmp_path)


def _dom(path, home) -> str:
    """The page as a browser has it once scripts have run."""
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home / 'browser'}", "--dump-dom"]
    return subprocess.run(
        [CHROMIUM, *words, path.as_uri()], capture_output=True, text=True, timeout=600, check=True
    ).stdout


def opened(uri: str) -> Image.Image:
    head, _, data = uri.partition(",")
    assert head == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_a_drawing_is_kept_as_it_is():
    shown = opened(data_uri(Image.new("RGBA", (40, 30), "red")))
    assert shown.size == (40, 30) and shown.convert("RGB").getcolors() == [(1200, (255, 0, 0))]


def test_a_large_image_is_made_smaller_and_its_own_size_stays():
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (400, 800, 3), dtype=np.uint8))
    uri = data_uri(noise, side=200)
    assert opened(uri).size == (200, 100) and noise.size == (800, 400)
    lossless = io.BytesIO()
    noise.resize((200, 100), Image.Resampling.LANCZOS).save(lossless, "WEBP", lossless=True)
    assert len(uri) < len(lossless.getvalue()) / 2


@pytest.mark.parametrize("place", ["{{ value }}", '<i title="{{ value }}">', "{{ pieces.marked([('in', value)]) }}"])
def test_a_value_is_text(place):
    template = environment().from_string('{% import "pieces.html" as pieces %}' + place)
    page = template.render(value=f'{ATTACK}" x="')
    assert "<script" not in page and '" x="' not in page and "&lt;script&gt;" in page


def test_a_missing_value_is_an_error():
    with pytest.raises(UndefinedError, match="title"):
        render("gallery.html", provenance="", sections=[])


def test_a_page_may_fetch_nothing_and_run_nothing():
    page = render("page.html")
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in page
    assert "http" not in page.replace("http-equiv", "")
