"""The steps that ask the LLM: what a failure, an instruction and an edited caption are read from, in any language."""

from __future__ import annotations

import asyncio

import pytest
from scripted import Scripted

from repair_hf.llm.answers import AnswerError, RefusedAnswer, UnparsedAnswer, read_answer
from repair_hf.llm.asker import Asker
from repair_hf.llm.ledger import Ledger
from repair_hf.llm.prompts import SHIPPED, Prompts
from repair_hf.synthesis.schemas import Verdict, Written
from repair_hf.synthesis.steps import instruct, usable

URL = "data:image/png;base64,AAAA"


def ask(direction: str, *answers: dict, prompts: Prompts = SHIPPED) -> tuple[str | None, list[str]]:
    left = iter(answers)
    with Ledger() as ledger:
        asker = Asker("m", ledger, provider=Scripted(lambda *_: next(left)), prompts=prompts)
        return asyncio.run(instruct(asker, direction, q=URL, fp=URL))


@pytest.mark.parametrize(
    ("direction", "types", "instruction", "expected"),
    [
        ("i2t", ["Count", "Object", "Count"], "把“一”换成“二”。", ["Count", "Object"]),
        ("i2t", [], None, []),
        ("t2i", ["Attribute"], "No change to the background; recolour the bus red.", ["Attribute"]),
        ("t2i", [], None, []),
    ],
)
def test_an_answer_says_by_its_fields_what_is_wrong(direction, types, instruction, expected):
    answer = {"error_types": types, "edit_instruction": instruction}
    assert ask(direction, answer) == (instruction, expected)


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
def test_where_an_instruction_is_required_none_is_asked_again(direction):
    types, wanted = ["Count"], "Replace 'one' with 'two'."
    answers = [{"error_types": types, "edit_instruction": instruction} for instruction in (None, wanted)]
    assert ask(direction, *answers, prompts=Prompts(always_instruct=True)) == (wanted, types)


@pytest.mark.parametrize(
    ("gt_valid", "fp_too_similar", "reason"),
    [(True, False, None), (True, True, "fp_too_similar"), (False, False, "gt_invalid"), (False, True, "gt_invalid")],
)
def test_a_verdict_names_why_a_failure_is_dropped(gt_valid, fp_too_similar, reason):
    said = {"gt_reason": "r", "gt_valid": gt_valid, "fp_reason": "r", "fp_too_similar": fp_too_similar}
    assert Verdict(**said).drop_reason == reason


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
