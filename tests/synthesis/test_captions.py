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
        (r'"A sign says \"go\" to us"', 'A sign says "go" to us'),
        (r'"Two dogs \ud83d run."', "Two dogs ? run."),
        ("```\nTwo dogs run.\n```", "Two dogs run."),
        ('```text\n"Two dogs run."\n```', "Two dogs run."),
        ("[Two] dogs run.", "[Two] dogs run."),
        ("{Two} dogs run.", "{Two} dogs run."),
        ("两只狗在跑。", "两只狗在跑。"),
        ('{"caption": "Two dogs run."}', None),
        ("Here is the corrected caption:\n\nTwo dogs run.", None),
        ("Two dogs run.\n \n(I replaced 'One' with 'Two'.)", None),
        ('"', '"'),
        ('""', None),
        ("  \n ", None),
    ],
)
def test_takes_a_caption_out_of_its_wrapping(answer, caption):
    assert clean(answer) == caption
