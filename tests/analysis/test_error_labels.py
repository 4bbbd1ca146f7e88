"""Error types of image instructions."""

from __future__ import annotations

import json

import pytest
from ledgers import ledger_in

from repair_hf.analysis.error_labels import ask_about, label_images
from repair_hf.llm.client import ChatModel
from repair_hf.llm.ledger import Reply
from repair_hf.llm.prompts import NAMES
from repair_hf.synthesis.instruct import ERROR_TYPES
from repair_hf.toyworld import instructions

INSTRUCTION = "Replace the small blue star with a small red star."
RECORD = {"record_id": "a", "q_text": 'a "red" star', "edit_instruction": INSTRUCTION}


def chat(folder, *texts: str) -> ChatModel:
    said = iter(texts)

    async def provider(request) -> Reply:
        return Reply(next(said), "stop", 10, 5, 0.0, "model")

    return ChatModel("model", ledger=ledger_in(folder), provider=provider)


def test_what_is_asked():
    assert "label_t2i" not in NAMES  # the prompt is no part of the records' digest
    system, user = ask_about(RECORD)
    assert all(f"- {kind}:" in system["content"] for kind in ERROR_TYPES)
    assert user["content"][0]["text"].splitlines() == [
        'Query caption: "a \\"red\\" star"',
        f'Edit instruction: "{INSTRUCTION}"',
    ]


def test_answers_become_labels_each_kind_once(tmp_path):
    others = [RECORD | {"record_id": name, "q_text": name} for name in ("b", "c")]
    kinds = (["Attribute"], ["Count", "Count"], ["Colour"], ["Colour"])
    answers = chat(tmp_path, *(json.dumps({"error_types": some}) for some in kinds))
    missing = label_images(answers, [RECORD, *others], tmp_path / "labels.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert missing == 1 and rows == [
        {"record_id": "a", "error_types": ["Attribute"]},
        {"record_id": "b", "error_types": ["Count"]},
    ]


@pytest.mark.parametrize(
    "instruction, kinds",
    [
        ("Replace the small blue star with a small red star. Keep everything else as it is.", ["Attribute"]),
        ("Replace the two large running red hearts with a large running red heart.", ["Count"]),
        ("Replace the large running red heart with a large sleeping red star.", ["Object", "Action"]),
        ("Add a red star so that the small sleeping blue star is left of it.", ["Object"]),
        ("Move the red star to be above of the heart. Change the background to night.", ["Relation", "Attribute"]),
    ],
)
def test_the_oracle_reads_an_instruction(instruction, kinds):
    assert instructions.image_errors(instruction) == kinds


def test_the_oracle_refuses_what_changes_nothing():
    with pytest.raises(ValueError, match="names no change"):
        instructions.image_errors("Keep everything else as it is.")
