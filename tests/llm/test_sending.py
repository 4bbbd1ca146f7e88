"""Limits, ceilings and the circuit as the client keeps them, against a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from repair_hf.llm.batches import Batches
from repair_hf.llm.budget import Budget, BudgetSpent
from repair_hf.llm.client import ChatModel, Deferred, UnparsedAnswer
from repair_hf.llm.journal import Journal
from repair_hf.llm.limits import Limits
from repair_hf.llm.retries import Retries
from repair_hf.options import UserError
from repair_hf.runs import RunStopped
from repair_hf.toyworld.server import ChatServer, Response

MODEL = "openai/gpt-4o-mini"
IN, OUT = 0.15e-6, 0.6e-6  # its list price per token
BILL = 1000 * IN + 100 * OUT

BUSY = Response(429, {"error": {"message": "slow down"}})
BROKEN = Response(500, {"error": {"message": "boom"}})


class Counted:
    """Answers in so many seconds; keeps how many requests came, how many of them were answered, and how many were here at once."""

    def __init__(self, answer, seconds: float = 0.01) -> None:
        self.answer, self.seconds, self.lock = answer, seconds, threading.Lock()
        self.came = self.answered = self.here = self.most = 0

    def __call__(self, body: dict) -> Response:
        with self.lock:
            self.came += 1
            self.here += 1
            self.most = max(self.most, self.here)
            response = self.answer(self)
        time.sleep(self.seconds)
        with self.lock:
            self.here -= 1
            self.answered += response.status == 200
        return response


@pytest.fixture
def crowd(tmp_path, monkeypatch):
    """Asks a server many questions at once; gives back what came of each."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    def run(server: Counted, questions: int, *, first: int = 0, max_tokens: int = 200, retries=None, **options):
        async def main(base_url: str):
            with Journal(tmp_path / "journal.jsonl") as journal:
                quick = retries or Retries(first_wait=0.05)
                chat = ChatModel(MODEL, journal=journal, base_url=base_url, retries=quick, **options)
                asked = (
                    chat.ask(
                        [{"role": "user", "content": f"question {k}"}],
                        stage="audit",
                        direction="i2t",
                        max_tokens=max_tokens,
                    )
                    for k in range(first, first + questions)
                )
                return await asyncio.gather(*asked, return_exceptions=True)

        with ChatServer(server) as chat_server:
            return asyncio.run(main(chat_server.base_url))

    return run


def good(_: Counted) -> Response:
    choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    return Response(body={"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage})  # fmt: skip


def of_type(outcomes: list, kind: type) -> list:
    return [outcome for outcome in outcomes if isinstance(outcome, kind)]


def test_a_server_that_serves_few_at_once_gets_few_at_once(crowd):
    server = Counted(lambda server: BUSY if server.here > 4 else good(server), seconds=0.05)
    outcomes = crowd(server, 60, limits=Limits(32), max_error_rate=0.2)
    assert outcomes == ["yes"] * 60
    assert 4 < server.most <= 32 and server.came < 160  # asking all the while would take many more


def test_requests_per_minute(crowd):
    server, start = Counted(good), time.monotonic()
    crowd(server, 20, limits=Limits(20, requests_per_minute=600))
    assert 0.9 < time.monotonic() - start < 10


def test_attempts_count_as_requests(crowd):
    server, start = Counted(lambda server: BROKEN if server.came % 2 else good(server)), time.monotonic()
    crowd(server, 5, limits=Limits(1, requests_per_minute=600))
    assert server.came == 10 and time.monotonic() - start > 0.4


def test_circuit_stops_a_run_whose_requests_fail(crowd):
    server = Counted(lambda server: BROKEN)
    outcomes = crowd(server, 100, limits=Limits(16), retries=Retries(attempts=100, first_wait=0.01))
    stops = of_type(outcomes, RunStopped)
    assert stops and "failed or brought answers of no use" in str(stops[0]) and "boom" in str(stops[0])


def test_circuit_puts_up_with_less(crowd):
    server = Counted(lambda server: BROKEN if server.came % 3 == 0 else good(server))
    assert crowd(server, 120, limits=Limits(16)) == ["yes"] * 120


def test_circuit_stops_a_run_whose_answers_are_of_no_use_and_a_rerun_does_not_trip_over_them(crowd):
    def empty(server: Counted) -> Response:
        response = good(server)
        response.body["choices"][0]["message"]["content"] = ""
        return response

    outcomes = crowd(Counted(empty), 100, limits=Limits(4))
    assert "answers of no use" in str(of_type(outcomes, RunStopped)[0])
    kept = len(of_type(outcomes, UnparsedAnswer))
    server = Counted(good)
    outcomes = crowd(server, 100, limits=Limits(4))
    assert not of_type(outcomes, RunStopped) and len(of_type(outcomes, UnparsedAnswer)) >= kept
    assert outcomes.count("yes") > 50


def test_max_calls_holds_for_the_folder(crowd):
    server = Counted(good)
    outcomes = crowd(server, 50, budget=Budget(max_calls=7))
    assert outcomes.count("yes") == 7 == server.came and len(of_type(outcomes, BudgetSpent)) == 43
    assert crowd(server, 7, budget=Budget(max_calls=7)).count("yes") == 7 == server.came  # from the journal: no call
    crowd(server, 50, budget=Budget(max_calls=10))
    assert server.came == 10


def test_failed_attempts_are_no_calls(crowd):
    server = Counted(lambda server: BROKEN if server.came % 2 else good(server))
    assert crowd(server, 20, budget=Budget(max_calls=10)).count("yes") == 10 == server.answered


def test_max_usd_holds_for_the_folder(crowd):
    server = Counted(good)
    outcomes = crowd(server, 60, limits=Limits(16), budget=Budget(max_usd=20.9 * BILL))
    assert 18 <= server.came <= 20 and len(of_type(outcomes, BudgetSpent)) == 60 - server.came
    assert server.most > 1  # only the first went alone
    crowd(server, 60, limits=Limits(16), budget=Budget(max_usd=30.9 * BILL))
    assert 28 <= server.came <= 30


def test_max_usd_holds_though_the_first_guess_is_far_off(crowd):
    def dear(server: Counted) -> Response:  # as gpt-4o-mini bills pictures, 33 times as much as others
        response = good(server)
        response.body["usage"]["prompt_tokens"] = 50_000
        return response

    server, bill = Counted(dear), 50_000 * IN + 100 * OUT
    crowd(server, 40, limits=Limits(16), budget=Budget(max_usd=10.5 * bill))
    assert server.came == 10


def test_max_usd_needs_a_price(tmp_path):
    with Journal(tmp_path / "journal.jsonl") as journal:
        with pytest.raises(UserError, match="no list price is known for 'openai/mine'. Set `max_calls`"):
            ChatModel("openai/mine", journal=journal, budget=Budget(max_usd=1.0))
        ChatModel("openai/mine", journal=journal, budget=Budget(max_calls=1))


def test_batches_take_what_the_budget_has_room_for(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    bound = (len("question 0") // 3 + 16) * IN / 2 + 200 * OUT / 2  # of one request, at half the price

    async def ask(chat: ChatModel, number: int) -> None:
        await chat.ask([{"role": "user", "content": f"question {number}"}], stage="a", direction="i2t", max_tokens=200)

    def run(max_usd: float) -> tuple[list, Batches]:
        async def main():
            with Journal(tmp_path / "journal.jsonl") as journal:
                batches = Batches(MODEL, tmp_path / "batches")
                chat = ChatModel(MODEL, journal=journal, budget=Budget(max_usd=max_usd), batches=batches)
                asked = (ask(chat, number % 8) for number in range(16))  # each twice
                return await asyncio.gather(*asked, return_exceptions=True), batches

        return asyncio.run(main())

    outcomes, batches = run(max_usd=5.5 * bound)
    assert len(of_type(outcomes, Deferred)) == 16 and batches.waiting == 5
    outcomes, batches = run(max_usd=0.5 * bound)
    assert len(of_type(outcomes, BudgetSpent)) == 16 and batches.waiting == 0
