"""Killed again and again, `synthesize` with a hosted LLM and a hosted editor costs no more than its ceiling.

The server counts its bills itself. After the last run the records are those of a run that nobody killed.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections import Counter

import pytest
from ledgers import ledger_in
from provider_server import ProviderServer, Question, Wire, edited, png, said
from small_world import saved

from repair_hf.cli.main import main
from repair_hf.toyworld import oracle
from tests.synthesis.killing import kill_family, start

BILLS = {"answer": 1000 * 0.15e-6 + 100 * 0.6e-6, "image": 0.01383}  # at the list prices of the two models
MODELS = ("--llm", "openai/gpt-4o-mini", "--editor", "openai/gpt-image-1", "--editor-size", "64")


class Biller:
    """Answers and edits, always alike, and counts what it bills; `changed` is notified of each bill."""

    def __init__(self) -> None:
        self.counts, self.changed = Counter(), threading.Condition()

    @property
    def dollars(self) -> float:
        return sum(count * BILLS[kind] for kind, count in self.counts.items())

    def __call__(self, question: Question) -> Wire:
        is_answer = question.path.endswith("/chat/completions")
        with self.changed:
            self.counts["answer" if is_answer else "image"] += 1
            self.changed.notify_all()
        if is_answer:
            return Wire(body=said("openai", oracle.answer(question.messages, question.seed)), delay=0.02)
        name = zlib.crc32(question.data.partition(b'name="prompt"')[2].partition(b"--")[0])
        return Wire(body=edited("openai", png((48, 40), (name % 256, name // 256 % 256, 7))), delay=0.05)


@pytest.mark.slow
def test_no_kill_makes_a_run_exceed_its_ceiling(words, tmp_path, capsys):
    """Twenty kills of one process and of two, in turn, at a few ceilings."""
    draw, undisturbed, disturbed = random.Random(0), Biller(), Biller()
    with ProviderServer(undisturbed) as server:
        whole = [*words, *MODELS, "--llm-base-url", server.base_url(), "--editor-base-url", server.base_url()]
        assert main([*whole, "--output", str(tmp_path / "whole")]) == 0, capsys.readouterr().err
    ceiling, killed = 0.0, tmp_path / "killed"
    with ProviderServer(disturbed) as server:
        same = [*words, *MODELS, "--llm-base-url", server.base_url(), "--editor-base-url", server.base_url()]
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
