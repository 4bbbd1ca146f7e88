"""How long to wait after an error, what is logged, and when too many errors stop a run."""

import asyncio

import pytest
from fake_clock import FakeClock

from repair_hf.llm import sending
from repair_hf.llm.errors import FailedRequest, PassingError, ProviderError
from repair_hf.llm.ledger import Ledger, Reply, Topic
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.sending import Circuit, Question, Retries, Sender
from repair_hf.runtime.run_folder import RunStopped

REPLY = Reply("text", "stop", 1, 1, None, "m")
TOO_MANY = PassingError("slow down", is_rate_limit=True)


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(sending, "time", clock)
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
            await asyncio.sleep(0.001)
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


@pytest.mark.parametrize(
    ("outcomes", "questions", "seconds"),
    [
        ([PassingError("slow down", 0.4, is_rate_limit=True), REPLY], 1, 0.4),
        ([TOO_MANY, REPLY], 1, 0.5),
        ([TOO_MANY, REPLY], 16, 0.5),  # those that were in flight together are one pause
        ([TOO_MANY, TOO_MANY, TOO_MANY, REPLY], 16, 0.5 + 1 + 2),
    ],
)
def test_after_a_429_everyone_waits(outcomes, questions, seconds, clock):
    start = clock.now
    assert all(call.reply == REPLY for call, _ in ask(clock, *outcomes, questions=questions))
    assert seconds <= clock.now - start < seconds + 0.5


def test_429s_in_a_row_outlast_a_minute_and_then_stop_the_run(clock):
    start = clock.now
    stops = ask(clock, TOO_MANY, questions=4)
    assert {type(stop) for stop in stops} == {ProviderError} and "failed 8 times in a row" in str(stops[0])
    assert 60 < clock.now - start < 65


def test_a_429_is_no_attempt_at_a_question(clock):
    """While the provider answers others, one may be put off again and again."""
    turns: list[int] = []

    async def work() -> list:
        with Ledger() as ledger:
            sender = Sender("m", ledger, RequestOptions(concurrency=2), Retries(attempts=3))

            async def send(number: int) -> Reply:
                turns.append(number)
                await asyncio.sleep(0.001)
                if number == 0 and len(turns) < 40:
                    raise TOO_MANY
                return REPLY

            topic = Topic("audit", "i2t", "m")
            asked = (
                sender.ask(Question(f"key {number}", topic, lambda n=number: send(n), worst=lambda: 0.0))
                for number in range(60)
            )
            return await asyncio.gather(*asked)

    assert len(clock.run(work())) == 60 and turns.count(0) > 3


def test_requests_at_once_are_shared_by_the_processes(clock, monkeypatch):
    monkeypatch.setattr(sending, "processes", lambda: type("Processes", (), {"count": 4}))
    for wanted, most in ((8, 2), (3, 1)):
        assert Sender("m", Ledger(), RequestOptions(concurrency=wanted))._most == most


def noted(circuit: Circuit, outcomes: str) -> int:
    """Notes attempts, `.` good, `x` a failure; returns after how many the circuit broke, or how many there were."""
    for number, outcome in enumerate(outcomes, start=1):
        try:
            circuit.note("boom" if outcome == "x" else None)
        except RunStopped:
            return number
    return len(outcomes)


@pytest.mark.parametrize(
    ("tolerated", "outcomes", "broken_after"),
    [
        (0.5, "x" * 49, 49),
        (0.5, "x" * 200, 50),
        (0.5, ".x" * 300, 600),  # half is not more than half
        (0.5, "." * 200 + "x" * 200, 301),
        (0.5, "." * 10_000 + "x" * 200, 10_101),  # a long good time does not outweigh a bad one
        (0.5, ".x" * 24 + "xxxx", 50),
        (1.0, "x" * 1000, 1000),
        (0.0, "." * 60 + "x", 61),
    ],
)
def test_circuit(tolerated, outcomes, broken_after):
    assert noted(Circuit(tolerated), outcomes) == broken_after
