from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset, Features, Image, Value
from PIL import Image as Picture

from repair_hf.analysis.choosing import Choice, choose
from repair_hf.analysis.figures import contact_sheet, grid_picture, right_answers

COLUMNS = {
    **dict.fromkeys(("record_id", "direction", "q_id", "gt_id", "fp_id"), Value("string")),
    **{f"{role}_text": Value("string") for role in ("q", "gt", "fp", "edit")},
    **{f"{role}_image": Image() for role in ("q", "gt", "fp", "edit")},
    **dict.fromkeys(("fp_score", "gt_score", "edit_similarity"), Value("float32")),
    **dict.fromkeys(("fp_rank", "gt_rank"), Value("int64")),
    **dict.fromkeys(("fp_reason", "edit_instruction", "retriever", "llm", "editor"), Value("string")),
}
SHARED = dict(
    q_id="q", gt_id="gt", fp_id="fp", fp_score=0.6, gt_score=0.5, edit_similarity=0.9, fp_rank=1, gt_rank=3,
    fp_reason="The dog is blue.", edit_instruction="Replace 'red' with 'blue'.", retriever="/home/me/secret/runs/clip",
    llm="world/oracle", editor="world",
)  # fmt: skip
RED, BLUE, GREEN = (Picture.new("RGB", (40, 30), colour) for colour in ("#ff0000", "#0000ff", "#00ff00"))


def record(name: str, direction: str, **others) -> dict:
    if direction == "t2i":
        cells = dict(q_text="a blue dog", gt_image=BLUE, fp_image=RED, edit_image=GREEN)
    else:
        cells = dict(q_image=BLUE, gt_text="a blue dog", fp_text="a red dog", edit_text="a blue dog")
    return dict.fromkeys(COLUMNS) | SHARED | cells | {"record_id": name, "direction": direction} | others


def dataset(*rows: dict) -> Dataset:
    return Dataset.from_list(list(rows), features=Features(COLUMNS))


def many(t2i: int, i2t: int) -> Dataset:
    return dataset(*(record(f"t{k}", "t2i") for k in range(t2i)), *(record(f"i{k}", "i2t") for k in range(i2t)))


def draw(records: Dataset, path) -> None:
    contact_sheet(choose(records, n=8), path)


def count(path, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(Picture.open(path)) == colour).all(2).sum())


def test_every_picture_and_caption_of_a_record_is_drawn(tmp_path):
    sheet = tmp_path / "sheet.png"
    draw(dataset(record("a", "t2i")), sheet)
    areas = [count(sheet, colour) for colour in ((255, 0, 0), (0, 0, 255), (0, 255, 0))]
    assert min(areas) > 60_000 and max(areas) - min(areas) == 0
    empty = tmp_path / "empty.png"
    draw(dataset(record("a", "t2i", q_text=" ")), empty)
    assert sheet.read_bytes() != empty.read_bytes()


def test_an_image_that_was_left_out_is_named(tmp_path):
    draw(dataset(record("a", "t2i", gt_image=None)), tmp_path / "sheet.png")
    assert count(tmp_path / "sheet.png", (0, 0, 255)) == 0
    assert count(tmp_path / "sheet.png", (255, 0, 0)) > 60_000


def test_a_score_that_nobody_took_is_told_as_unknown(tmp_path):
    draw(dataset(record("a", "i2t", gt_score=None, fp_score=None, edit_similarity=None)), tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").exists()


def test_odd_text_neither_breaks_nor_widens_the_sheet(tmp_path):
    odd = "line\nbreak\t" + "x" * 500 + " 猫 $a_b$ <b>&amp;</b> " + "word " * 300
    rows = dataset(
        record("a", "i2t", fp_text=odd, edit_text=odd + "!", edit_instruction=odd, fp_reason=None, q_id=odd)
    )
    draw(rows, tmp_path / "odd.png")
    draw(many(0, 1), tmp_path / "plain.png")
    odd_size, plain_size = (Picture.open(tmp_path / f"{name}.png").size for name in ("odd", "plain"))
    assert odd_size[0] == plain_size[0] and odd_size[1] < plain_size[1] + 60


def test_a_dropped_failure_is_drawn_with_its_reason_in_place_of_an_edit(tmp_path):
    row = {
        name: cell for name, cell in record("a", "i2t").items() if not name.endswith("_image") and name[:5] != "edit_"
    }
    row |= {"edit_instruction": None, "reason": "gt_invalid", "detail": None}
    sheets = [tmp_path / "a.png", tmp_path / "b.png"]
    for sheet, reason in zip(sheets, ("gt_invalid", "no_op"), strict=True):
        contact_sheet(Choice([row | {"reason": reason}], {"i2t": 1}), sheet)
    assert sheets[0].read_bytes() != sheets[1].read_bytes()


def test_a_tie_is_no_right_answer():
    cosines = np.array([[0.5, 0.5, 0.1], [0.2, 0.6, 0.3], [0.4, 0.1, 0.35]])
    by_text, by_image = right_answers(cosines)
    assert by_text.tolist() == [False, True, False]
    assert by_image.tolist() == [True, True, True]


def test_the_grid_shows_its_images_twice_and_its_numbers_as_colours(tmp_path):
    before, after = np.full((3, 3), 0.25), np.eye(3)
    grid_picture([RED, BLUE, GREEN], ["a", "b", "c"], before, after, tmp_path / "grid.png")
    areas = [count(tmp_path / "grid.png", colour) for colour in ((255, 0, 0), (0, 0, 255), (0, 255, 0))]
    assert areas[0] == areas[1] == areas[2] > 40_000
    grid_picture([RED, BLUE, GREEN], ["a", "b", "c"], after, after, tmp_path / "other.png")
    assert (tmp_path / "grid.png").read_bytes() != (tmp_path / "other.png").read_bytes()


def test_equal_similarities_can_be_drawn(tmp_path):
    grid_picture([RED] * 3, ["a"] * 3, np.zeros((3, 3)), np.zeros((3, 3)), tmp_path / "grid.png")
    assert (tmp_path / "grid.png").exists()


def test_what_is_no_grid_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"got 2, 3, \(3, 3\) and \(2, 2\)"):
        grid_picture([RED, BLUE], ["a", "b", "c"], np.zeros((3, 3)), np.zeros((2, 2)), tmp_path / "grid.png")
