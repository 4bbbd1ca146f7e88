import asyncio

import pytest
from fake_clock import FakeClock

from repair_hf.llm import failures
from repair_hf.llm.failures import PassingFailure, ProviderError, Retries, _wait, insist
from repair_hf.llm.provider import Reply

CLOCK = FakeClock()
REPLY = Reply("text", "stop", 1, 1, None, "m")


def sender(*outcomes):
    """Raises or returns the outcomes in turn; returns those that are left, too."""
    left = list(outcomes)

    async def send() -> Reply:
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return send, left


def test_named_wait_is_kept():
    send, _ = sender(PassingFailure("busy", named_wait=0.2), REPLY)
    start = CLOCK.now
    CLOCK.run(insist(send, Retries(first_wait=0.01), "m"))
    assert 0.2 <= CLOCK.now - start < 0.22


def test_named_wait_beyond_patience():
    send, left = sender(PassingFailure("busy", named_wait=61), REPLY)
    with pytest.raises(ProviderError, match="asks to wait 61 s"):
        CLOCK.run(insist(send, Retries(patience=60), "m"))
    assert left == [REPLY]


def test_waits_double_up_to_a_bound_with_full_jitter():
    retries = Retries(first_wait=1.0, longest_wait=8.0)
    for attempt, bound in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 8), (50, 8)]:
        waits = [_wait(retries, attempt, None) for _ in range(300)]
        assert 0 <= min(waits) < 0.1 * bound and 0.9 * bound < max(waits) <= bound


def test_a_dead_server_is_one_line_a_minute(monkeypatch, caplog):
    async def dead() -> None:
        raise PassingFailure("no route")

    async def work() -> list:
        retries = Retries(attempts=40, first_wait=4.0)
        return await asyncio.gather(*(insist(dead, retries, "dead") for _ in range(16)), return_exceptions=True)

    monkeypatch.setattr(failures, "time", CLOCK)
    caplog.set_level("INFO")
    start = CLOCK.now
    assert {type(outcome) for outcome in CLOCK.run(work())} == {ProviderError}
    minutes = (CLOCK.now - start) / 60
    assert minutes > 3 and minutes / 2 < len(caplog.records) <= minutes + 1
