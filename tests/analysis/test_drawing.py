from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from repair_hf.analysis import drawing
from repair_hf.analysis.drawing import Word, changes, contain, fit_lines, line_width, set_lines, title_bar, words

TEXT = "Two small dogs\nchase a  ball that rolls down the hill behind the old farmhouse in the evening sun"


def texts(lines) -> list[str]:
    return [" ".join(word.text for word in line) for line in lines]


@pytest.mark.parametrize("width", [90, 200, 400, 5000])
def test_lines_hold_every_word_and_stay_in_the_box(width):
    lines = set_lines(words(TEXT), 18, width, 99)
    assert "".join(texts(lines)).replace(" ", "") == "".join(TEXT.split())
    assert max(line_width(line, 18) for line in lines) <= width


@pytest.mark.parametrize("text", [TEXT, "a" * 300, ""])
def test_what_does_not_fit_ends_in_an_ellipsis(text):
    lines = set_lines(words(text), 18, 120, 2)
    assert len(lines) == (2 if text else 1)
    assert max(line_width(line, 18) for line in lines) <= 120
    assert (lines[-1][-1].text == "…") if text else lines == [[]]


def test_a_word_wider_than_the_line_is_cut_into_pieces():
    lines = set_lines(words("see https://example.org/a/long/address"), 18, 120, 99)
    assert "".join(texts(lines)).replace(" ", "") == "seehttps://example.org/a/long/address"
    assert max(line_width(line, 18) for line in lines) <= 120


def test_a_long_text_is_set_smaller_and_a_short_one_is_not():
    assert fit_lines(words("a dog"), (26, 20, 14), 300, 120)[1] == 26
    assert fit_lines(words(TEXT), (26, 20, 14), 300, 120)[1] == 20
    lines, size = fit_lines(words(TEXT * 9), (26, 20, 14), 300, 120)
    assert size == 14 and lines[-1][-1].text == "…"


def test_changes_mark_what_was_taken_out_and_what_was_put_in():
    before, after = changes("A red dog runs home.", "a blue dog runs")
    assert [word.text for word in before if word.struck] == ["red", "home."]
    assert [word.text for word in after if word.bold] == ["blue"]
    assert [word.text for word in before] == "A red dog runs home.".split()
    assert [word.text for word in after] == "a blue dog runs".split()
    assert not any(
        word.bold for side in changes("A dog.", "a dog") for word in side
    )  # case and a full stop are no change
    assert all(word.bold for word in changes("", "a dog")[1])


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
@pytest.mark.parametrize("size, expected", [((10, 10), (80, 80)), ((400, 100), (120, 30)), ((100, 400), (20, 80))])
def test_a_picture_is_shown_whole_and_as_large_as_it_can_be(mode, size, expected):
    shown = contain(Image.new(mode, size), 120, 80)
    assert (shown.mode, shown.size) == ("RGB", expected)


def test_writing_puts_ink_where_it_is_told_to():
    paper = Image.new("RGB", (300, 100), "white")
    end = drawing.write(ImageDraw.Draw(paper), 50, 20, [[Word("dog", "black", struck=True)]], 20)
    dark = np.argwhere(np.asarray(paper.convert("L")) < 128)  # (pixels, 2): row, column
    assert dark[:, 0].min() >= 20 and dark[:, 0].max() < end
    assert dark[:, 1].min() >= 50 and dark[:, 1].max() <= 50 + line_width([Word("dog")], 20) + 1


def test_a_title_keeps_clear_of_its_small_print():
    bar = title_bar("Title", "small print " * 90, 700)
    assert bar.size == (700, 92)
