from __future__ import annotations

import random

import pytest

from repair_hf.analysis.differences import both_sides, word_diff


def test_what_goes_stands_before_what_comes():
    assert word_diff("a red dog runs home", "a blue dog runs") == [
        ("same", "a"),
        ("out", "red"),
        ("in", "blue"),
        ("same", "dog runs"),
        ("out", "home"),
    ]


def test_case_and_punctuation_are_no_change():
    assert word_diff("A dog, runs.", "a dog runs") == [("same", "a dog runs")]
    assert both_sides("A dog, runs.", "a dog runs") == ([("same", "A dog, runs.")], [("same", "a dog runs")])


@pytest.mark.parametrize("before, after, runs", [("", "", []), ("", "a", [("in", "a")]), ("a", "", [("out", "a")])])
def test_an_empty_text_is_a_text(before, after, runs):
    assert word_diff(before, after) == runs


def test_each_side_is_its_text_and_the_row_holds_both():
    rng = random.Random(0)
    for _ in range(200):
        before, after = (" ".join(rng.choices("a A b, b c - d", k=rng.randrange(8))) for _ in range(2))
        left, right = both_sides(before, after)
        assert " ".join(text for _, text in left) == " ".join(before.split())
        assert " ".join(text for _, text in right) == " ".join(after.split())
        row = word_diff(before, after)
        assert [run for run in row if run[0] == "out"] == [run for run in left if run[0] == "out"]
        assert [run for run in row if run[0] != "out"] == right
