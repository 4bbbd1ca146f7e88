"""The split and the draw of an image never change: a new release must not move a test image into training."""

from repair_hf.pairs.choosing import draw_images, rows_of_split
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.rows import Listing, Row, image_files

ROWS = [Row(place, f"{place:012d}.jpg", place, ["a caption"]) for place in range(30)]


def places(split: str, rows: list[Row]) -> list[int]:
    listing = Listing(image_files([None] * len(rows)), rows)
    return [row.image for row in rows_of_split(listing, (split,), None, Problems(), "photographs")]


def test_images_are_split_by_the_same_hash_as_ever():
    assert places("validation", ROWS) == [4, 5, 18, 27] and places("test", ROWS) == [1, 9]
    assert places("train", ROWS) == sorted(set(range(30)) - {1, 4, 5, 9, 18, 27})


def test_an_image_keeps_its_split_when_others_come_or_go():
    assert places("test", ROWS[5:]) == [9] and places("validation", ROWS[::-1]) == [27, 18, 5, 4]


def test_images_of_a_group_stay_together():
    grouped = [row._replace(group=ROWS[row.image % 3 + 3].image_id) for row in ROWS]  # groups 3, 4 and 5
    assert places("train", grouped) == list(range(0, 30, 3))
    assert places("validation", grouped) == [place for place in range(30) if place % 3]


def test_the_same_images_are_drawn_as_ever_and_a_larger_draw_contains_every_smaller_one():
    drawn = [row.image for row in draw_images(ROWS, 10)]
    assert drawn == [0, 4, 6, 7, 8, 11, 14, 19, 22, 24]
    assert {row.image for row in draw_images(ROWS, 4)} < set(drawn) and draw_images(ROWS, None) == ROWS
