"""Prompts of one's own, from the call to the ledger and the card."""

from __future__ import annotations

import pytest
import yaml

from repair_hf.hub.files import pack_records
from repair_hf.llm import prompts
from repair_hf.llm.ledger_file import read_calls
from repair_hf.llm.prompts import SHIPPED, Prompts
from repair_hf.synthesis.synthesize import synthesize


@pytest.mark.parametrize("how", [{"audit": "lenient"}, {"always_instruct": True}])
def test_another_wording_of_ours_is_on_record_too(how, world, tmp_path):
    models = {"llm": "world/oracle", "editor": "world", "output": tmp_path / "out"}
    records = synthesize(world.of("i2t", 6), world.pairs, world.encoder, **models, **how)
    assert set(records["prompt_digest"]) == {Prompts(**how).digest()} != {SHIPPED.digest()}
    files = pack_records(tmp_path / "out", "me/x", scratch=tmp_path).files
    assert how.items() <= yaml.safe_load(files["config.yaml"]).items()


def test_they_are_on_record_in_ledger_records_and_card(world, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "audit_i2t.md").write_text(f"Judge as a grocer does.\n{prompts._read('audit_i2t')}")
    how = {"prompts": str(tmp_path / "own"), "domain_notes": "Size decides."}
    models = {"llm": "world/oracle", "editor": "world", "output": tmp_path / "out"}
    records = synthesize(world.of("i2t", 6), world.pairs, world.encoder, **models, **how)
    digest = Prompts(tmp_path / "own", "Size decides.").digest()
    assert set(records["prompt_digest"]) == {digest} != {SHIPPED.digest()}
    assert {call["prompts"] for call in read_calls(tmp_path / "out")} == {digest}
    parcel = pack_records(tmp_path / "out", "me/x", scratch=tmp_path)
    assert digest in parcel.card and b"Size decides." in parcel.files["config.yaml"]
