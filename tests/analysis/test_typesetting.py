import random

import pytest

from repair_hf.analysis.typesetting import compare, fit_lines, line_width, marked_words, set_lines, words

TEXT = "Two small dogs\nchase a  ball that rolls down the hill behind the old farmhouse in the evening sun"


def widest(lines, size: float) -> float:
    return max(line_width(line, size) for line in lines)


@pytest.mark.parametrize("text", [TEXT, "see https://example.org/a/long/address", "a" * 300])
@pytest.mark.parametrize("width", [90, 200, 5000])
def test_lines_hold_every_word_and_stay_in_the_box(text, width):
    lines = set_lines(words(text), 18, width, 99)
    assert "".join(word.text for line in lines for word in line) == "".join(text.split())
    assert widest(lines, 18) <= width


@pytest.mark.parametrize("text", [TEXT, "a" * 300])
def test_what_does_not_fit_ends_in_an_ellipsis(text):
    lines = set_lines(words(text), 18, 120, 2)
    assert len(lines) == 2 and widest(lines, 18) <= 120 and lines[-1][-1].text == "…"
    assert set_lines([], 18, 120, 2) == [[]]


def test_a_long_text_is_set_smaller_and_a_short_one_is_not():
    assert [fit_lines(words(text), (26, 20, 14), 300, 120)[1] for text in ("a dog", TEXT)] == [26, 20]
    lines, size = fit_lines(words(TEXT * 9), (26, 20, 14), 300, 120)
    assert size == 14 and lines[-1][-1].text == "…"


def test_changes_are_marked_and_case_and_punctuation_are_no_change():
    before, after = compare("A red dog, runs home.", "a blue dog runs")
    assert before == [("same", "A"), ("out", "red"), ("same", "dog, runs"), ("out", "home.")]
    assert after == [("same", "a"), ("in", "blue"), ("same", "dog runs")]
    assert [word.text for word in marked_words(before) if word.struck] == ["red", "home."]
    assert [word.text for word in marked_words(after) if word.bold] == ["blue"]


def test_each_side_is_its_text():
    rng = random.Random(0)
    for _ in range(200):
        texts = [" ".join(rng.choices("a A b, b c - d", k=rng.randrange(8))) for _ in range(2)]
        for text, runs in zip(texts, compare(*texts), strict=True):
            assert " ".join(run for _, run in runs) == " ".join(text.split())
