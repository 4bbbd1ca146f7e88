"""Edited captions: what is left of an answer."""

from __future__ import annotations

import pytest

from repair_hf.synthesis.captions import clean


@pytest.mark.parametrize(
    ("answer", "caption"),
    [
        ("Two dogs run.", "Two dogs run."),
        ("  Two dogs\n run.\n", "Two dogs run."),
        ('"Two dogs run."', "Two dogs run."),
        ("“Two dogs run.”", "Two dogs run."),
        ('"Stop" and "go" signs', '"Stop" and "go" signs'),
        ('A sign says "go"', 'A sign says "go"'),
        ('"', '"'),
        ('""', None),
        ("  \n ", None),
    ],
)
def test_takes_a_caption_out_of_its_wrapping(answer, caption):
    assert clean(answer) == caption
