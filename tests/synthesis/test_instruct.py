"""Edit instructions: their error types and whether there is one stand in fields of their own, in any language."""

from __future__ import annotations

import pytest
from scripted import Scripted

from repair_hf.llm.client import ChatModel
from repair_hf.llm.ledger import Ledger
from repair_hf.llm.prompts import Prompts
from repair_hf.synthesis.instruct import instruct
from repair_hf.synthesis.pipeline import _run


@pytest.mark.parametrize(
    ("direction", "answer", "expected"),
    [
        (
            "i2t",
            {"error_types": ["Count", "Object", "Count"], "edit_instruction": "把“一”换成“二”。"},
            ["Count", "Object"],
        ),
        ("i2t", {"error_types": [], "edit_instruction": None}, []),
        ("t2i", {"edit_instruction": "Färbe den Bus rot."}, []),
        ("t2i", {"edit_instruction": "No change to the background; recolour the bus red."}, []),
        ("t2i", {"edit_instruction": None}, []),
    ],
)
def test_an_answer_says_by_its_fields_what_is_wrong(direction, answer, expected, tmp_path):
    async def ask():
        return await instruct(chat, direction, q="data:image/png;base64,AAAA", fp="data:image/png;base64,AAAA")

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        chat = ChatModel("m", ledger=ledger, provider=Scripted(lambda *_: answer))
        found = []
        _run(_into(found, ask()))
    assert found == [(answer["edit_instruction"], expected)]


@pytest.mark.parametrize(("direction", "types"), [("i2t", ["Count"]), ("t2i", [])])
def test_where_an_instruction_is_required_none_is_asked_again(direction, types, tmp_path):
    answers = iter([None, "Replace 'one' with 'two'."])
    said = {"error_types": types} if types else {}

    async def ask():
        return await instruct(chat, direction, q="data:image/png;base64,AAAA", fp="data:image/png;base64,AAAA")

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        provider = Scripted(lambda *_: said | {"edit_instruction": next(answers)})
        chat = ChatModel("m", ledger=ledger, provider=provider, prompts=Prompts(always_instruct=True))
        found = []
        _run(_into(found, ask()))
    assert found == [("Replace 'one' with 'two'.", types)]


async def _into(found, work):
    found.append(await work)
