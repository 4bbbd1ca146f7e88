"""Edit instructions: their error types and whether there is one stand in fields of their own, in any language."""

from __future__ import annotations

import asyncio

import pytest
from scripted import Scripted

from repair_hf.llm.client import ChatModel
from repair_hf.llm.ledger import Ledger
from repair_hf.llm.prompts import SHIPPED, Prompts
from repair_hf.synthesis.instruct import instruct

URL = "data:image/png;base64,AAAA"


def ask(direction: str, *answers: dict, prompts: Prompts = SHIPPED) -> tuple[str | None, list[str]]:
    left = iter(answers)
    with Ledger() as ledger:
        chat = ChatModel("m", ledger=ledger, provider=Scripted(lambda *_: next(left)), prompts=prompts)
        return asyncio.run(instruct(chat, direction, q=URL, fp=URL))


@pytest.mark.parametrize(
    ("direction", "types", "instruction", "expected"),
    [
        ("i2t", ["Count", "Object", "Count"], "把“一”换成“二”。", ["Count", "Object"]),
        ("i2t", [], None, []),
        ("t2i", None, "No change to the background; recolour the bus red.", []),
        ("t2i", None, None, []),
    ],
)
def test_an_answer_says_by_its_fields_what_is_wrong(direction, types, instruction, expected):
    answer = {"edit_instruction": instruction} | ({} if types is None else {"error_types": types})
    assert ask(direction, answer) == (instruction, expected)


@pytest.mark.parametrize(("direction", "types"), [("i2t", ["Count"]), ("t2i", [])])
def test_where_an_instruction_is_required_none_is_asked_again(direction, types):
    wanted = "Replace 'one' with 'two'."
    answers = [{"error_types": types, "edit_instruction": instruction} for instruction in (None, wanted)]
    assert ask(direction, *answers, prompts=Prompts(always_instruct=True)) == (wanted, types)
