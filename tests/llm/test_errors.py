"""How long to wait after an error, and what is logged."""

import asyncio

import pytest
from fake_clock import FakeClock

from repair_hf.llm import limits, sending
from repair_hf.llm.errors import FailedRequest, PassingError, ProviderError
from repair_hf.llm.ledger import Ledger, Reply, Topic
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.sending import Question, Retries, Sender

REPLY = Reply("text", "stop", 1, 1, None, "m")


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(sending, "time", clock)
    monkeypatch.setattr(limits, "time", clock)
    return clock


def ask(clock, *outcomes, questions=1, **retries):
    """Ask questions whose attempts have these outcomes, the last one for ever; return what came of the first."""

    async def work() -> list:
        with Ledger() as ledger:
            sender = Sender("m", ledger, RequestOptions(max_error_rate=1.0), Retries(**retries))
            asked = (question(sender, f"key {number}") for number in range(questions))
            return await asyncio.gather(*asked, return_exceptions=True)

    async def question(sender: Sender, key: str):
        left = list(outcomes)

        async def send() -> Reply:
            outcome = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return await sender.ask(Question(key, Topic("audit", "i2t", "m"), send, worst=lambda: 0.0))

    return clock.run(work())


def test_named_wait_is_kept(clock):
    start = clock.now
    ((call, is_new),) = ask(clock, PassingError("busy", named_wait=0.2), REPLY, first_wait=0.01)
    assert call.reply == REPLY and is_new and 0.2 <= clock.now - start < 0.22


def test_named_wait_beyond_patience(clock):
    (stop,) = ask(clock, PassingError("busy", named_wait=61), REPLY, patience=60)
    assert type(stop) is ProviderError and "asks to wait 61 s" in str(stop)


def test_waits_double_up_to_a_bound_with_full_jitter():
    retries = Retries(first_wait=1.0, longest_wait=8.0)
    for attempt, bound in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 8), (50, 8)]:
        waits = [retries.wait_after(PassingError("busy"), attempt, "m") for _ in range(300)]
        assert 0 <= min(waits) < 0.1 * bound and 0.9 * bound < max(waits) <= bound


def test_a_dead_server_is_one_line_a_minute(clock, caplog):
    caplog.set_level("INFO")
    start = clock.now
    stops = ask(clock, PassingError("no route"), questions=16, attempts=40, first_wait=4.0)
    assert {type(stop) for stop in stops} == {FailedRequest}
    minutes = (clock.now - start) / 60
    assert minutes > 3 and minutes / 2 < len(caplog.records) <= minutes + 1
