import base64
import io
import re

import numpy as np
from datasets import Dataset
from PIL import Image

from repair_hf.analysis.pages import data_uri, gallery, render
from repair_hf.analysis.record_sample import RecordSample, sample_records
from repair_hf.hub.record_card import _picture
from repair_hf.pairs.images import in_rgb
from repair_hf.records.dataset import DROPPED_FEATURES

ATTACK = (
    "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">\"' autofocus onfocus=1 "
)


def row(repaired: Dataset, direction: str, **others) -> dict:
    return next(each for each in repaired if each["direction"] == direction) | others


def page(*rows: dict, kind: str = "repaired") -> str:
    return gallery(RecordSample(list(rows), {"t2i": 3, "i2t": 3}, kind))


def test_every_picture_and_caption_of_a_record_is_there(repaired):
    shown = gallery(sample_records(repaired, n=4))
    images = re.findall(r'<img src="data:image/webp;base64,[\w+/=]+"', shown)
    assert len(images) == 2  # the edits; the rest was left out
    assert shown.count("left out of these records") == 2 * 2 + 2
    for each in sample_records(repaired, n=4).rows:
        assert each["record_id"] in shown and each["q_id"] in shown
    assert "2 of 12" in shown


def test_the_changed_words_and_the_candidates_are_marked(repaired):
    texts = {"fp_text": "a red dog", "edit_text": "a blue dog"}
    shown = page(row(repaired, "i2t", **texts, candidate_similarities=[None, 0.5, 0.25], candidate=1))
    assert "a <del>red</del> dog" in shown and "a <ins>blue</ins> dog" in shown
    assert "failed or changed nothing · 0.500 (selected) · 0.250; cosine with the false positive" in shown


def test_a_dropped_failure_says_why(repaired):
    failure = dict.fromkeys(DROPPED_FEATURES) | {"direction": "i2t", "q_id": "q", "gt_text": "a", "fp_text": "b"}
    shown = page(failure | {"reason": "llm_refused", "detail": "not that one"}, kind="dropped")
    assert "the LLM refused to answer. not that one" in shown and "Dropped failures" in shown
    assert ">edit<" not in shown and "rewritten to fit it" not in shown


def attacked(repaired: Dataset) -> str:
    """A page of records of which every text is an attack."""
    rows = []
    for direction in ("t2i", "i2t"):
        each = row(repaired, direction)
        texts = [name for name, cell in each.items() if isinstance(cell, str) and name != "direction"]
        texts += ["gt_reason", "fp_reason", "edit_instruction"]
        rows.append(each | dict.fromkeys(texts, ATTACK) | {"error_types": [ATTACK]})
    return page(*rows)


def test_no_text_becomes_a_tag(repaired):
    shown = attacked(repaired)
    assert "<script" not in shown and "<img src=x" not in shown and "&lt;script&gt;" in shown
    assert "\"' autofocus" not in shown  # which would end an attribute


def opened(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/webp;base64,"))))


def test_a_drawing_is_kept_and_a_photograph_is_made_smaller():
    shown = opened(data_uri(Image.new("RGBA", (40, 30), "red")))
    assert shown.size == (40, 30) and shown.convert("RGB").getcolors() == [(1200, (255, 0, 0))]
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (400, 800, 3), dtype=np.uint8))
    uri = data_uri(noise, side=200)
    assert opened(uri).size == (200, 100) and noise.size == (800, 400)
    lossless = io.BytesIO()
    noise.resize((200, 100), Image.Resampling.LANCZOS).save(lossless, "WEBP", lossless=True)
    assert len(uri) < len(lossless.getvalue()) / 2


def test_deep_and_transparent_pictures_are_drawn_as_training_sees_them():
    steps = np.linspace(0, 1, 20 * 30).reshape(20, 30)
    hidden = np.dstack([np.full((20, 30, 3), 90), np.zeros((20, 30))]).astype(np.uint8)
    pictures = [(65535 * steps).astype(np.uint16), steps.astype(np.float32), hidden]
    for picture in map(Image.fromarray, pictures):
        for drawn in (opened(data_uri(picture)), Image.open(io.BytesIO(_picture(picture)))):
            assert np.array_equal(drawn.convert("RGB"), in_rgb(picture))


def test_a_page_may_fetch_nothing_and_run_nothing():
    page = render("page.html")
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in page
    assert "http" not in page.replace("http-equiv", "")
