from __future__ import annotations

import numpy as np
import pytest
from datasets import Dataset, Features, Image, Value
from PIL import Image as Picture

from repair_hf.analysis.figures import contact_sheet, grid_picture, right_answers
from repair_hf.options import UserError

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


def count(path, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(Picture.open(path)) == colour).all(2).sum())


@pytest.mark.parametrize(
    "t2i, i2t, n, expected",
    [(9, 9, 6, (3, 3)), (9, 1, 6, (5, 1)), (0, 9, 6, (0, 6)), (2, 2, 9, (2, 2)), (5, 5, 1, (0, 1))],
)
def test_both_directions_get_the_same_share_as_far_as_there_are_records(tmp_path, t2i, i2t, n, expected):
    drawn = contact_sheet(many(t2i, i2t), tmp_path / "sheet.png", n=n)
    assert len(set(drawn)) == len(drawn)
    if n > 1:
        assert tuple(sum(name[0] == letter for name in drawn) for letter in "ti") == expected
    else:
        assert len(drawn) == 1


def test_the_seed_chooses(tmp_path):
    records = many(20, 20)
    first, again, other = (
        contact_sheet(records, tmp_path / f"{k}.png", n=4, seed=seed) for k, seed in enumerate((0, 0, 1))
    )
    assert first == again != other
    assert (tmp_path / "0.png").read_bytes() == (tmp_path / "1.png").read_bytes()


def test_one_direction_alone(tmp_path):
    assert sorted(contact_sheet(many(3, 3), tmp_path / "sheet.png", n=2, direction="i2t"))[0].startswith("i")


def test_every_picture_and_caption_of_a_record_is_drawn(tmp_path):
    sheet = tmp_path / "sheet.png"
    contact_sheet(dataset(record("a", "t2i")), sheet)
    areas = [count(sheet, colour) for colour in ((255, 0, 0), (0, 0, 255), (0, 255, 0))]
    assert min(areas) > 60_000 and max(areas) - min(areas) == 0
    empty = tmp_path / "empty.png"
    contact_sheet(dataset(record("a", "t2i", q_text=" ")), empty)
    assert sheet.read_bytes() != empty.read_bytes()


def test_an_image_that_was_left_out_is_named(tmp_path):
    contact_sheet(dataset(record("a", "t2i", gt_image=None)), tmp_path / "sheet.png")
    assert count(tmp_path / "sheet.png", (0, 0, 255)) == 0
    assert count(tmp_path / "sheet.png", (255, 0, 0)) > 60_000


def test_a_score_that_nobody_took_is_told_as_unknown(tmp_path):
    contact_sheet(
        dataset(record("a", "i2t", gt_score=None, fp_score=None, edit_similarity=None)), tmp_path / "sheet.png"
    )
    assert (tmp_path / "sheet.png").exists()


def test_odd_text_neither_breaks_nor_widens_the_sheet(tmp_path):
    odd = "line\nbreak\t" + "x" * 500 + " 猫 $a_b$ <b>&amp;</b> " + "word " * 300
    rows = dataset(
        record("a", "i2t", fp_text=odd, edit_text=odd + "!", edit_instruction=odd, fp_reason=None, q_id=odd)
    )
    contact_sheet(rows, tmp_path / "odd.png")
    contact_sheet(many(0, 1), tmp_path / "plain.png")
    odd_size, plain_size = (Picture.open(tmp_path / f"{name}.png").size for name in ("odd", "plain"))
    assert odd_size[0] == plain_size[0] and odd_size[1] < plain_size[1] + 60


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(direction="t2i"), r"nothing to draw: the records hold \{'t2i': 0\}"),
        (dict(n=0), r"nothing to draw: the records hold .* n is 0"),
        (dict(direction="up"), r"one of \['t2i', 'i2t'\], got 'up'"),
    ],
)
def test_where_there_is_nothing_to_draw_it_says_so(tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        contact_sheet(many(0, 2), tmp_path / "sheet.png", **options)


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
