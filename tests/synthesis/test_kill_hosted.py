"""Killed again and again, `synthesize` with a hosted LLM and a hosted editor costs no more than its ceiling.

The server counts its bills itself. After the last run the records are those of a run that nobody killed.
"""

from __future__ import annotations

import random

import pytest
from biller import MODELS, Biller
from ledgers import ledger_in
from provider_server import ProviderServer
from small_world import saved

from repair_hf.cli.main import main
from tests.synthesis.killing import kill_family, start


@pytest.mark.slow
def test_no_kill_makes_a_run_exceed_its_ceiling(words, tmp_path, capsys):
    """Twenty kills of one process and of two, in turn, at a few ceilings."""
    draw, undisturbed, disturbed = random.Random(0), Biller(), Biller()
    with ProviderServer(undisturbed) as server:
        whole = [*words, *MODELS, "--llm-base-url", server.url(), "--editor-base-url", server.url()]
        assert main([*whole, "--output", str(tmp_path / "whole")]) == 0, capsys.readouterr().err
    ceiling, killed = 0.0, tmp_path / "killed"
    with ProviderServer(disturbed) as server:
        same = [*words, *MODELS, "--llm-base-url", server.url(), "--editor-base-url", server.url()]
        same += ["--output", str(killed)]
        for kill in range(20):
            ceiling += draw.choice([0.2, 1.0, 3.0])
            kill_at_a_bill(draw.randint(1, 40), [*same, "--max-usd", str(ceiling)], 1 + kill % 2, tmp_path, disturbed)
            with ledger_in(killed) as ledger:  # as the next run counts
                assert disturbed.dollars <= ledger.total[0] + 1e-9 and ledger.total[0] <= ceiling + 1e-9
        assert main([*same, "--max-usd", str(ceiling + 100)]) == 0, capsys.readouterr().err
    assert saved(killed) == saved(tmp_path / "whole") and len(saved(killed)[0]) > 20
    assert undisturbed.counts["image"] > 20
    with ledger_in(killed) as ledger:
        lost = ledger.database.execute("SELECT COUNT(*) FROM call WHERE state = 'lost'").fetchone()[0]
    assert disturbed.counts.total() - undisturbed.counts.total() <= lost  # only what was on its way is paid for twice


def kill_at_a_bill(number: int, words: list[str], processes: int, folder, biller: Biller) -> None:
    """Run the command, and kill it once the server has sent so many bills more; a ceiling may end it before that."""
    wanted = biller.counts.total() + number
    process = start(words, processes, folder)
    while process.poll() is None:
        with biller.changed:
            if biller.changed.wait_for(lambda: biller.counts.total() >= wanted, timeout=0.5):
                break
    kill_family(process.pid)
    process.communicate()
