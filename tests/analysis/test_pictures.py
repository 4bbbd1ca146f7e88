import numpy as np
import pytest
from datasets import Dataset
from matplotlib.text import Text
from PIL import Image as Picture

from repair_hf.analysis.charts import save
from repair_hf.analysis.pictures import contact_sheet
from repair_hf.analysis.record_sample import RecordSample, sample_records
from repair_hf.records.dataset import DROPPED_FEATURES, FEATURES

SHARED = dict(
    q_id="q", gt_id="gt", fp_id="fp", fp_score=0.6, gt_score=0.5, edit_similarity=0.9, fp_rank=1, gt_rank=3,
    fp_reason="The dog is blue.", edit_instruction="Replace 'red' with 'blue'.", retriever="/home/me/secret/runs/clip",
    llm="world/oracle", editor="world",
)  # fmt: skip
RED, BLUE, GREEN = (Picture.new("RGB", (40, 30), color) for color in ("#ff0000", "#0000ff", "#00ff00"))


def record(name: str, direction: str, **others) -> dict:
    if direction == "t2i":
        cells = dict(q_text="a blue dog", gt_image=BLUE, fp_image=RED, edit_image=GREEN)
    else:
        cells = dict(q_image=BLUE, gt_text="a blue dog", fp_text="a red dog", edit_text="a blue dog")
    return dict.fromkeys(FEATURES) | SHARED | cells | {"record_id": name, "direction": direction} | others


@pytest.fixture
def draw(tmp_path):
    """Draws records on a contact sheet, and returns its path."""

    def draw_rows(*rows: dict, name: str = "sheet"):
        path = tmp_path / f"{name}.png"
        save(contact_sheet(sample_records(Dataset.from_list(list(rows), features=FEATURES), n=8)), path)
        return path

    return draw_rows


def areas(path) -> list[int]:
    """Pixels of each color."""
    shown = np.asarray(Picture.open(path).convert("RGB"))
    return [int((shown == color).all(2).sum()) for color in ((255, 0, 0), (0, 0, 255), (0, 255, 0))]


def test_every_image_and_caption_of_a_record_is_drawn(draw):
    sheet, empty = draw(record("a", "t2i")), draw(record("a", "t2i", q_text=" "), name="empty")
    assert min(areas(sheet)) > 60_000 and max(areas(sheet)) - min(areas(sheet)) < 2_000
    assert sheet.read_bytes() != empty.read_bytes()


def test_missing_images_and_scores_are_no_obstacle(draw):
    rows = [record("a", "t2i", gt_image=None, gt_score=None), record("b", "i2t", edit_similarity=None, q_image=None)]
    red, blue, _ = areas(draw(*rows))
    assert blue == 0 and red > 60_000


def test_odd_text_neither_breaks_nor_widens_the_sheet(draw):
    odd = "line\nbreak\t" + "x" * 500 + " 猫 $a_b$ <b>&amp;</b> " + "word " * 300
    row = record("a", "i2t", fp_text=odd, edit_text=odd + "!", edit_instruction=odd, fp_reason=None, q_id=odd)
    odd_size, plain_size = (Picture.open(path).size for path in (draw(row), draw(record("a", "i2t"), name="plain")))
    assert odd_size[0] == plain_size[0] and odd_size[1] < plain_size[1] + 60


def test_a_dropped_failure_is_drawn_with_its_reason_in_place_of_an_edit():
    row = dict.fromkeys(DROPPED_FEATURES) | {k: v for k, v in record("a", "i2t").items() if k in DROPPED_FEATURES}
    row |= {"edit_instruction": None, "reason": "gt_invalid", "detail": "the hill is\nmissing"}
    figure = contact_sheet(RecordSample([row], {"i2t": 1}))
    texts = " ".join(text.get_text() for text in figure.findobj(Text))
    assert "Dropped failures" in texts and "none: the hill is missing" in texts and "gt_invalid" in texts
