"""A run that asks at once, and meets questions that another run has just put into a batch."""

from __future__ import annotations

import shutil
import sqlite3

import pytest
from ledgers import ledger_in
from small_world import saved

from repair_hf.llm.client import ChatModel
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.toyworld import oracle


@pytest.mark.parametrize("stage", ["audit", "instruct", "edit"])
def test_what_another_run_has_in_a_batch_stays_open(stage, world, tmp_path):
    def run(folder, **options):
        with ledger_in(folder) as ledger:
            chat = ChatModel("oracle", ledger=ledger, provider=oracle.provider("world/oracle"))
            return world.synthesize(chat, folder, **options)

    whole = run(tmp_path / "whole")
    (tmp_path / "part").mkdir()
    shutil.copy(tmp_path / "whole" / "ledger.sqlite", tmp_path / "part")
    shutil.copytree(tmp_path / "whole" / "candidates", tmp_path / "part" / "candidates")
    taken = "UPDATE call SET state = 'submitted', batch_id = 'batch-1', reply = NULL WHERE stage = ?"
    with sqlite3.connect(tmp_path / "part" / "ledger.sqlite") as ledger:
        assert ledger.execute(taken, (stage,)).rowcount
    with pytest.raises(RunStopped, match="requests are with oracle in 1 batches"):
        run(tmp_path / "part")
    again = "DELETE FROM call WHERE state = 'submitted'"  # the other run has given them up
    with sqlite3.connect(tmp_path / "part" / "ledger.sqlite") as ledger:
        ledger.execute(again)
    assert run(tmp_path / "part") == whole == saved(tmp_path / "part")
