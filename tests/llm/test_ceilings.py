"""Ceilings hold for all questions at once, for all processes and through kills, by the server's own count."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from children import Child
from killing import Held
from ledgers import ledger_in, rows
from provider_server import ProviderServer

from repair_hf.llm.ledger import BudgetSpent
from tests.llm.asking import WORST, Till, ask_all, ask_in_child

ROUNDING = 1e-9


def test_64_questions_at_once_stay_below_a_ceiling_in_dollars_and_use_it_up(tmp_path):
    till = Till(0.7)
    with ProviderServer(till) as server:
        for dollars in (0.5, 8.3):  # one is below the price of a question
            before = len(till.asked)
            outcomes = ask_all(tmp_path, server.url(), 64, max_usd=dollars * WORST)
            with ledger_in(tmp_path) as ledger:
                assert ledger.total == (pytest.approx(till.dollars), len(till.asked))
            assert dollars * WORST - WORST < till.dollars <= dollars * WORST
            assert outcomes.count("yes") == len(till.asked) == 64 - Counter(map(type, outcomes))[BudgetSpent]
            assert (len(till.asked) > before) == (dollars > 1)
            spent = next(outcome for outcome in outcomes if isinstance(outcome, BudgetSpent))
            assert "--max-usd" in str(spent) and "Rerun with a higher ceiling" in str(spent)
        assert ask_all(tmp_path, server.url(), 64) == ["yes"] * 64
    assert len(till.asked) == len(set(till.asked)) == 64


def test_64_questions_at_once_stay_below_a_ceiling_in_calls(tmp_path):
    with ProviderServer(till := Till()) as server:
        for ceiling in (0, 1, 9, 9, 40):
            ask_all(tmp_path, server.url(), 64, max_calls=ceiling)
            assert len(till.asked) == ceiling


@pytest.mark.slow
def test_three_processes_on_one_file_share_the_ceilings_and_the_answers(tmp_path):
    with ProviderServer(till := Till(0.7)) as server:
        for ceilings in ({"max_usd": 10 * WORST}, {"max_calls": 30}):
            children = [Child(ask_in_child, tmp_path, server.url(), 40, ceilings) for _ in range(3)]
            assert [child.wait() for child in children] == [0] * 3, children[0].said()
            if "max_usd" in ceilings:
                assert 9 * WORST < till.dollars <= 10 * WORST + ROUNDING
    assert len(till.asked) == len(set(till.asked)) == 30 == len(rows(tmp_path))


@pytest.mark.slow  # a start of Python; `test_ledger.py` kills a process by default, `test_ledger_machine.py` plays it
def test_kills_after_some_answers(tmp_path):
    """What was on its way counts at its worst price, and only that is asked again."""
    till, kills = Till(), (1, 4, 6, 9)
    count = len(kills)
    ceilings = {"max_usd": (40.5 + count) * WORST, "concurrency": 4}
    held = Held(till)
    with ProviderServer(held) as server:
        for answers in kills:
            assert held.kill(partial(Child, ask_in_child, tmp_path, server.url(), 40, ceilings), answers)
        ask_all(tmp_path, server.url(), 40, **ceilings)
        with ledger_in(tmp_path) as ledger:
            counted, _ = ledger.total
        assert till.dollars <= counted + ROUNDING and 39.5 + count < counted / WORST <= 40.5 + count
        assert ask_all(tmp_path, server.url(), 40) == ["yes"] * 40
    lost = len(rows(tmp_path, "lost"))
    assert count <= lost <= 4 * count and len(till.asked) <= 40 + lost and len(rows(tmp_path)) == 40


def test_bills_above_the_reserve_are_written_as_they_are_and_then_reserved(tmp_path):
    """Only what was on its way before the first bill came exceeds the ceiling, and that once."""
    till = Till(10.0)
    with ProviderServer(till) as server:
        for _ in range(3):
            ask_all(tmp_path, server.url(), 64, max_usd=50 * WORST, concurrency=8)
            with ledger_in(tmp_path) as ledger:
                assert ledger.total[0] == pytest.approx(till.dollars)
        assert till.dollars <= 50 * WORST + 8 * till.bill
        before = len(till.asked)
        ask_all(tmp_path, server.url(), 64, max_usd=200 * WORST, concurrency=64)
    assert before < len(till.asked) and till.dollars <= 200 * WORST + ROUNDING


@pytest.mark.slow
def test_bills_above_the_reserve_and_a_kill_after_each(tmp_path):
    till, ceilings = Till(10.0), {"max_usd": 45 * WORST, "concurrency": 2}
    held = Held(till)
    with ProviderServer(held) as server:
        ask_all(tmp_path, server.url(), 1)  # one bill is known
        while held.kill(partial(Child, ask_in_child, tmp_path, server.url(), 64, ceilings), 0):
            pass  # until the ceiling ends it
        with ledger_in(tmp_path) as ledger:
            assert till.dollars <= ledger.total[0] + ROUNDING
            assert ledger.total == (pytest.approx(4 * till.bill), 4)  # a fifth would pass the ceiling
    assert len(rows(tmp_path, "lost")) == 3  # what was reserved and not yet sent counts, too
