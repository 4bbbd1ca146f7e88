"""Edited captions: what a structured answer holds, in any language."""

from __future__ import annotations

import pytest

from repair_hf.llm.answers import AnswerError, RefusedAnswer, UnparsedAnswer, read_answer
from repair_hf.synthesis.captions import Written, usable


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ('{"answer": "  Two dogs\\n run.\\n"}', "Two dogs run."),
        (
            '{"answer": "I\'m sorry, but I can\'t help with that, says a mug."}',
            "I'm sorry, but I can't help with that, says a mug.",
        ),
        ('{"answer": "Caption: two dogs."}', "Caption: two dogs."),
        ('{"answer": null}', None),
    ],
)
def test_the_text_is_what_stands_in_its_field(answer, text):
    assert read_answer(answer, "stop", Written) == Written(answer=text)


def test_one_caption_among_the_candidates_is_enough():
    refusal, fault = RefusedAnswer("declined"), UnparsedAnswer("cut off")
    assert usable([refusal, fault, Written(answer="Two dogs")]) == [None, None, "Two dogs"]
    for answers in ([refusal, fault], [fault, refusal], [fault, Written(answer=None)]):
        with pytest.raises(AnswerError) as caught:
            usable(answers)
        assert caught.value is answers[0]
    with pytest.raises(RefusedAnswer, match="the model declined"):
        usable([Written(answer=None), fault])
