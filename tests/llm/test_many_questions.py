"""Many questions at once, against a provider over HTTP that fails: pauses, drops, and the circuit."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest
from ledgers import rows
from provider_server import Wire, error

from repair_hf.llm.answers import AnswerError, FailedAnswer
from repair_hf.llm.paid_model import Circuit, Retries
from repair_hf.llm.provider import PassingError, ProviderError
from repair_hf.runtime.run_folder import RunStopped
from tests.llm.asking import PRICED, texts

BUSY = Wire(429, error("openai", 429, "slow down"))
BROKEN = Wire(500, error("openai", 500, "boom"))
REJECTED = Wire(400, error("openai", 400, "too large"))


class Counted:
    """Answers by a function of itself; counts the requests, and how many are here at once.

    The first requests, `together` in number, are answered when all of them are here.
    """

    def __init__(self, answer, together: int = 1) -> None:
        self.answer, self.lock = answer, threading.Lock()
        self.together, self.meeting = together, threading.Barrier(together)
        self.came = self.here = self.most = 0

    def __call__(self, question) -> str | Wire:
        with self.lock:
            self.came += 1
            self.here += 1
            self.most = max(self.most, self.here)
            self.asked = question.messages[0]["content"]
            answer, is_early = self.answer(self), self.came <= self.together
        if is_early:
            self.meeting.wait(60)
        with self.lock:
            self.here -= 1
        return answer


@pytest.fixture
def crowd(with_asker):
    """Asks many questions at once; returns what came of each."""

    def run(server, questions: int, *, first: int = 0, model=PRICED, **options):
        async def work(asker):
            asked = partial(asker.ask, stage="audit", direction="i2t", max_tokens=200)
            return await asyncio.gather(*map(asked, texts(first, first + questions)), return_exceptions=True)

        return with_asker(server, work, model, **options)

    return run


def of_type(outcomes: list, kind: type) -> list:
    return [outcome for outcome in outcomes if isinstance(outcome, kind)]


def test_a_server_that_serves_few_at_once_answers_all(crowd):
    server = Counted(lambda server: BUSY if server.here > 4 else "yes", together=5)
    outcomes = crowd(server, 24, concurrency=16, retries=Retries(first_wait=0.01), max_error_rate=0.0)
    assert outcomes == ["yes"] * 24 and 4 < server.most <= 16


@pytest.mark.parametrize("wait", ["0.2", None])
def test_after_a_429_all_requests_wait(crowd, wait):
    """Those that were on their way together are one pause; a wait that is too long stops the run."""
    busy = Wire(429, BUSY.body, {"Retry-After": wait} if wait else {})
    times: list[float] = []

    def answer(server) -> str | Wire:
        times.append(time.monotonic())
        return busy if len(times) <= 8 else "yes"

    outcomes = crowd(Counted(answer, together=8), 16, concurrency=8, retries=Retries(attempts=2, first_wait=0.2))
    assert outcomes == ["yes"] * 16 and times[8] - times[7] >= 0.2


def test_pauses_between_which_answers_come_do_not_add_up(crowd):
    server = Counted(lambda server: BUSY if server.came % 2 else "yes")
    assert crowd(server, 4, concurrency=1) == ["yes"] * 4 and server.came == 8


def test_a_provider_that_asks_to_wait_too_long_stops_the_run(crowd):
    (stop,) = crowd(Counted(lambda server: Wire(429, BUSY.body, {"Retry-After": "121"})), 1)
    assert isinstance(stop, ProviderError) and "asks to wait 121 s: slow down. Every answer so far is kept" in str(
        stop
    )


def test_what_is_rejected_or_always_fails_costs_its_row_alone_and_is_asked_again_by_the_next_run(crowd, tmp_path):
    faults = {"question 3": REJECTED, "question 5": BROKEN}
    server = Counted(lambda server: faults.get(server.asked, "yes"))
    outcomes = crowd(server, 20, concurrency=4)
    assert outcomes.count("yes") == 18 and server.came == 18 + 1 + 3
    failed = {str(outcomes[number]): outcomes[number].drop_reason for number in (3, 5)}
    assert set(failed.values()) == {"llm_failed"} and len(of_type(outcomes, FailedAnswer)) == 2
    assert any("does not accept the request: too large" in reason for reason in failed)
    assert any("failed 3 times, at last with: boom" in reason for reason in failed)
    assert len(rows(tmp_path)) == 18 and not rows(tmp_path, "lost")
    faults.clear()
    assert crowd(server, 20) == ["yes"] * 20 and server.came == 22 + 2


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (REJECTED, "too large"),
        pytest.param(BROKEN, "boom", marks=pytest.mark.slow),
        pytest.param("", "an unusable answer", marks=pytest.mark.slow),
    ],
)
def test_a_run_in_which_most_fails_is_stopped(crowd, reply, fault):
    stops = of_type(crowd(Counted(lambda server: reply), 60, concurrency=4), RunStopped)
    assert "more than --max-error-rate 0.5 allows; the last one: " in str(stops[0]) and fault in str(stops[0])


@pytest.mark.slow
def test_a_run_that_tolerates_all_failures_goes_on(crowd):
    tolerated = crowd(Counted(lambda server: REJECTED), 55, concurrency=4, max_error_rate=1.0)
    assert len(of_type(tolerated, AnswerError)) == 55


def test_waits_double_up_to_the_longest_unless_the_provider_names_one():
    retries = Retries(first_wait=1.0, longest_wait=3.0)
    busy, broken, named = PassingError("", is_rate_limit=True), PassingError(""), PassingError("", named_wait=5.0)
    assert [retries.wait_after(busy, attempt) for attempt in (1, 2, 3, 9)] == [1.0, 2.0, 3.0, 3.0]
    waits = [retries.wait_after(broken, 2) for _ in range(200)]
    assert min(waits) >= 0 and 1.5 < max(waits) <= 2 and 5 <= retries.wait_after(named, 1) <= 6


@pytest.mark.parametrize(
    ("tolerated", "places", "outcomes", "broken_after"),
    [
        (0.5, 4, "x" * 49, 49),
        (0.5, 4, "x" * 200, 50),
        (0.5, 4, ".x" * 300, 600),  # half is not more than half
        (0.5, 4, "." * 200 + "x" * 200, 301),
        (0.5, 4, "." * 10_000 + "x" * 200, 10_101),  # a long good time does not outweigh a bad one
        (1.0, 4, "x" * 1000, 1000),
        (0.0, 4, "." * 60 + "x", 61),
        (0.5, 50, "x" * 300, 200),  # all requests on their way may fail together
        (0.5, 50, "." * 10_000 + "x" * 500, 10_401),
    ],
)
def test_circuit(tolerated, places, outcomes, broken_after):
    circuit = Circuit(tolerated, places)
    noted = 0
    try:
        for outcome in outcomes:
            noted += 1
            circuit.note("boom" if outcome == "x" else None)
    except RunStopped:
        pass
    assert noted == broken_after
