"""Failures that become no record: each keeps its reason, and costs no other failure."""

from __future__ import annotations

import json

import pytest
from datasets import Dataset
from scripted import Scripted, synthesize

from repair_hf.llm.ledger import Reply
from repair_hf.runtime.options import UserError
from repair_hf.toyworld.editor import WorldEditor

AUDITED = {"gt_reason": "it fits", "gt_valid": True, "fp_reason": "it does not fit", "fp_too_similar": False}
SOUND = {
    "audit": AUDITED,
    "instruct": {"error_types": ["Count"], "edit_instruction": "More. Therefore, replace 'a' with 'two'."},
    "edit": {"answer": "two dogs"},
}

UNREADABLE = {"error_types": ["Object"], "edit_instruction": "Do what no editor can read."}
CASES = [  # direction, stage, answer, reason, detail
    ("t2i", "audit", AUDITED | {"gt_valid": False}, "gt_invalid", None),
    ("i2t", "audit", AUDITED | {"fp_too_similar": True}, "fp_too_similar", None),
    ("i2t", "audit", AUDITED | {"gt_valid": False, "fp_too_similar": True}, "gt_invalid", None),
    ("t2i", "audit", "I think so.", "llm_unparsed", "no JSON"),
    ("i2t", "audit", Reply("I cannot.", "refusal", 1, 1, 0.0, "m"), "llm_refused", "I cannot."),
    ("i2t", "instruct", {"edit_instruction": "Replace 'a' with 'b'."}, "llm_unparsed", "error_types"),
    ("i2t", "instruct", {"error_types": ["Colour"], "edit_instruction": "x"}, "llm_unparsed", "error_types"),
    ("i2t", "instruct", {"error_types": [], "edit_instruction": "x"}, "llm_unparsed", "must name what is wrong"),
    ("t2i", "instruct", {"error_types": ["Count"], "edit_instruction": " "}, "llm_unparsed", "edit_instruction"),
    ("i2t", "instruct", {"error_types": [], "edit_instruction": None}, "no_op", "nothing to change"),
    ("t2i", "instruct", UNREADABLE, "no_op", "no candidate differs"),
    ("i2t", "edit", Reply("", "content_filter", 1, 0, 0.0, "m"), "llm_refused", "content_filter"),
    ("i2t", "edit", {"answer": " "}, "llm_unparsed", "there is no text"),
    ("i2t", "edit", "我无法协助处理此请求。", "llm_unparsed", "no JSON object"),
    ("i2t", "edit", {"answer": None}, "llm_refused", "declined"),
]


@pytest.fixture(scope="module")
def dropped_rows(world, tmp_path_factory) -> list[dict]:
    """One run with a failure for each case, which has a caption of its own; what is dropped, in the order of cases."""
    owner, failures, cases = world.pairs.captions["image_index"][:], [], {}
    captions = {row["caption"]: number for number, row in enumerate(world.pairs.captions)}
    first = {direction: world.of(direction, 1)[0] for direction in ("t2i", "i2t")}
    for case, (text, caption) in zip(CASES, captions.items(), strict=False):
        image, other, direction = owner[caption], (owner[caption] + 1) % 12, case[0]
        ids = {"q": caption, "gt": image, "fp": other}
        if direction == "i2t":
            ids = {"q": other, "gt": owner.index(other), "fp": caption}
        failures.append(first[direction] | ids)
        label = {"t2i": "Query", "i2t": "False-positive"}[direction]
        cases[f"{label} caption: {json.dumps(text)}"] = case

    def script(at: str, shown: str):
        stage, answer = next(case[1:3] for line, case in cases.items() if line in shown.split("\n"))
        return answer if at == stage else SOUND[at]

    folder = tmp_path_factory.mktemp("drops")
    records, dropped, _ = synthesize(world, folder, Scripted(script), failures=Dataset.from_list(failures))
    assert len(records) == 0 and len(dropped) == len(CASES)
    return dropped.to_list()


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_row_is_dropped_for_its_reason(number, dropped_rows):
    (direction, stage, _, reason, detail), row = CASES[number], dropped_rows[number]
    assert (row["direction"], row["reason"]) == (direction, reason)
    assert row["detail"] is None if detail is None else detail in row["detail"]
    assert row["gt_reason"] == "it fits" or reason.startswith("llm") and stage == "audit"


def test_one_sound_candidate_is_enough(world, tmp_path):
    failure = world.of("i2t", 1)
    copy = world.pairs.captions["caption"][failure[0]["fp"]]
    answers = iter([Reply("", "content_filter", 1, 0, 0.0, "m"), {"answer": "two\n dogs "}, {"answer": copy}])
    asked = Scripted(lambda stage, shown: next(answers) if stage == "edit" else SOUND[stage])
    records, dropped, _ = synthesize(world, tmp_path, asked, failures=failure)
    assert len(dropped) == 0 and records["edit_text"] == ["two dogs"]
    assert [value is None for value in records[0]["candidate_similarities"]] == [True, False, True]
    assert records["candidate"] == [1]


class Refusing(WorldEditor):
    def edit(self, source, instruction, seeds):
        return [None] * len(seeds)


def test_an_editor_that_gives_nothing_costs_the_row(world, tmp_path):
    records, dropped, _ = synthesize(world, tmp_path, failures=world.of("t2i", 1), editor=Refusing())
    assert len(records) == 0 and dropped["reason"] == ["editor_failed"]


def test_a_broken_image_costs_its_own_rows_only(world, tmp_path):
    broken = {"train-00003.png", "train-00007.png"}
    copy = world.with_broken_images(tmp_path / "world", *broken)
    records, dropped, _ = synthesize(copy, tmp_path / "out")
    lost = [row for row in dropped if row["reason"] == "unreadable_image"]
    touched = [row for row in world.of("i2t") if copy.pairs.images["image_id"][row["q"]] in broken]
    assert len([row for row in lost if row["direction"] == "i2t"]) == len(touched) > 0
    assert all({row[role].split("#")[0] for role in ("q_id", "gt_id", "fp_id")} & broken for row in lost)
    assert not {row["q_id"] for row in records} & broken and len(records) + len(dropped) == len(world.failures)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda row: row | {"fp": 10_000}, "1 of 2 failures were mined from other pairs: the `fp` of row"),
        (lambda row: row | {"q_id": "another.png"}, "mined from other pairs: the `q` of row"),
        (None, r"lack \['gt_rank'\]"),
    ],
)
def test_failures_of_other_pairs_are_refused(spoil, complaint, world, tmp_path):
    ids = world.pairs.captions["caption_id"]
    row, other = (row | {"q_id": ids[row["q"]]} for row in world.of("t2i", 2))
    spoilt = Dataset.from_list([spoil(row), other]) if spoil else Dataset.from_list([row]).remove_columns("gt_rank")
    with pytest.raises(UserError, match=complaint):
        synthesize(world, tmp_path, failures=spoilt)


def test_no_failures_give_no_records(world, tmp_path):
    records, dropped, _ = synthesize(world, tmp_path, failures=world.failures.select([]))
    assert len(records) == len(dropped) == 0
