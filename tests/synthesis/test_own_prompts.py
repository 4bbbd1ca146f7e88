"""Prompts of one's own, from the call to the ledger and the card."""

from __future__ import annotations

import pytest

from repair_hf.hub.files import pack_records
from repair_hf.llm import prompts
from repair_hf.llm.ledger_file import read_calls
from repair_hf.llm.prompts import SHIPPED, Prompts
from repair_hf.synthesis.synthesize import synthesize


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"audit": "lenient"}, "Look for major mismatches: wrong main subject, wrong gender"),
        ({"always_instruct": True}, "the instruction is never empty"),
    ],
)
def test_another_wording_of_ours_is_on_record_too(how, told, world, tmp_path):
    models = {"llm": "world/oracle", "editor": "world", "output": tmp_path / "out"}
    records = synthesize(world.of("i2t", 6), world.pairs, world.encoder, **models, **how)
    assert set(records["prompt_digest"]) == {Prompts(**how).digest()} != {SHIPPED.digest()}
    assert told in pack_records(tmp_path / "out", "me/x", scratch=tmp_path).card


def test_they_are_on_record_in_ledger_records_and_card(world, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "audit_i2t.md").write_text(f"Judge as a grocer does.\n{prompts._read('audit_i2t')}")
    how = {"prompts": str(tmp_path / "own"), "domain_notes": "Size decides."}
    models = {"llm": "world/oracle", "editor": "world", "output": tmp_path / "out"}
    records = synthesize(world.of("i2t", 6), world.pairs, world.encoder, **models, **how, grouped_audit=True)
    digest = Prompts(tmp_path / "own", "Size decides.").digest()
    assert set(records["prompt_digest"]) == {digest} != {SHIPPED.digest()}
    assert {call["prompts"] for call in read_calls(tmp_path / "out")} == {digest}
    card = pack_records(tmp_path / "out", "me/x", scratch=tmp_path).card
    assert digest in card and "Judge as a grocer does." in card and "About this domain: Size decides." in card
