"""Limits, ceilings and the circuit as the client keeps them, against a real HTTP server on loopback."""

from __future__ import annotations

import asyncio
import base64
import io
import threading
import time
from contextlib import suppress

import pytest
from PIL import Image

from repair_hf.llm.answers import FailedAnswer
from repair_hf.llm.batches import Batches
from repair_hf.llm.budget import Budget, BudgetSpent, guess_tokens
from repair_hf.llm.client import ChatModel, Deferred, ProviderError, UnparsedAnswer
from repair_hf.llm.cost import paid_in
from repair_hf.llm.journal import Journal
from repair_hf.llm.limits import Limits
from repair_hf.llm.retries import Retries
from repair_hf.llm.tokens import count_tokens
from repair_hf.options import UserError
from repair_hf.records.columns import REASONS
from repair_hf.runs import RunStopped
from repair_hf.toyworld.server import ChatServer, Response

MODEL = "openai/gpt-4o-mini"
IN, OUT = 0.15e-6, 0.6e-6  # its list price per token
BILL = 1000 * IN + 100 * OUT

THREE = Retries(attempts=3, first_wait=0.01)

BUSY = Response(429, {"error": {"message": "slow down"}})
BROKEN = Response(500, {"error": {"message": "boom"}})


class Counted:
    """Answers in so many seconds; keeps what was asked last, how many requests came, how many of them were answered, and how many were here at once.

    With `meeting` a request other than the first stays until two have been here at once, or for five seconds.
    """

    def __init__(self, answer, seconds: float = 0.01, *, meeting: bool = False) -> None:
        self.answer, self.seconds, self.lock = answer, seconds, threading.Lock()
        self.came = self.answered = self.here = self.most = 0
        self.have_met = threading.Event()
        if not meeting:
            self.have_met.set()

    def __call__(self, body: dict) -> Response:
        with self.lock:
            self.came += 1
            self.here += 1
            self.most = max(self.most, self.here)
            self.asked = body["messages"][0]["content"]
            response = self.answer(self)
            if self.here > 1:
                self.have_met.set()
            is_first = self.came == 1
        time.sleep(self.seconds)
        if not is_first:
            self.have_met.wait(5)
        with self.lock:
            self.here -= 1
            self.answered += response.status == 200
        return response


@pytest.fixture
def crowd(tmp_path, monkeypatch):
    """Asks a server many questions at once; gives back what came of each."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    def run(
        server: Counted, questions: int, *, first: int = 0, max_tokens: int = 200, retries=None, model=MODEL, **options
    ):
        async def main(base_url: str):
            with Journal(tmp_path / "journal.jsonl") as journal:
                quick = retries or Retries(first_wait=0.05)
                chat = ChatModel(model, journal=journal, base_url=base_url, retries=quick, **options)
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
    assert 0.9 < time.monotonic() - start < 60


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
    server = Counted(good, meeting=True)
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


def every_second(server: Counted) -> Response:
    """The others are answered, and billed, but their answers break off."""
    return Response(body=b'{"id": "1", "choices": [') if server.came % 2 else good(server)


MOST = 1000 * IN + 200 * OUT  # that a request may cost, once a bill has shown how many tokens its prompt has


def test_answers_that_are_lost_on_their_way_count(crowd, tmp_path):
    server = Counted(every_second)
    assert crowd(server, 12, limits=Limits(1), budget=Budget(max_calls=12)).count("yes") == 6 and server.came == 12
    crowd(server, 12, limits=Limits(1), budget=Budget(max_calls=12))
    assert server.came == 12  # the next run knows
    with Journal(tmp_path / "journal.jsonl") as journal:
        assert journal.calls == 12
        assert journal.dollars == pytest.approx(6 * BILL + (19 * IN + 200 * OUT) + 5 * MOST)
    use = paid_in(tmp_path)["audit", "i2t"]
    assert use.calls == 6 and use.dollars == pytest.approx(journal.dollars)


def test_max_usd_holds_though_answers_are_lost(crowd):
    server = Counted(every_second)
    crowd(server, 60, limits=Limits(1), budget=Budget(max_usd=10 * (BILL + MOST)))
    assert server.came == 20


# What fails again and again


def failing(server: Counted) -> Response:
    return BROKEN if server.asked == "question 3" else good(server)


def test_an_answer_that_a_stopping_run_does_not_wait_for_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    has_come, has_left = threading.Event(), threading.Event()

    def late(body: dict) -> str:
        has_come.set()
        has_left.wait(30)
        return "too late"

    async def main(base_url: str) -> None:
        with Journal(tmp_path / "journal.jsonl") as journal:
            chat = ChatModel(MODEL, journal=journal, base_url=base_url)
            message = {"role": "user", "content": "question"}
            asked = asyncio.create_task(chat.ask([message], stage="audit", direction="i2t", max_tokens=200))
            await asyncio.to_thread(has_come.wait, 30)
            with suppress(TimeoutError):
                await asyncio.wait_for(chat.drain(), 0.05)
            await asyncio.wait([asked])

    with ChatServer(late) as server:
        asyncio.run(main(server.base_url))
        has_left.set()
    with Journal(tmp_path / "journal.jsonl") as journal:  # the next run knows
        assert journal.calls == 1 and 200 * OUT < journal.dollars < 1.1 * 200 * OUT
        assert not journal.models


def test_a_request_that_always_fails_costs_its_row_alone(crowd):
    server = Counted(failing)
    outcomes = crowd(server, 40, limits=Limits(4), retries=THREE)
    (fault,) = of_type(outcomes, FailedAnswer)
    assert outcomes.index(fault) == 3 and outcomes.count("yes") == 39 and server.came == 39 + 3
    assert fault.drop_reason in REASONS and str(fault) == f"{MODEL} failed 3 times in a row, at last with: boom"
    assert crowd(server, 5, limits=Limits(4), first=40, retries=THREE) == ["yes"] * 5
    server.answer = good
    assert crowd(server, 1, first=3) == ["yes"]  # it was not for ever


def test_a_request_that_fails_where_none_is_answered_stops_the_run_unless_failures_are_put_up_with(crowd):
    server = Counted(failing)
    (stop,) = crowd(server, 1, first=3, retries=THREE)
    assert isinstance(stop, ProviderError) and "failed 3 times in a row" in str(stop)
    assert "same command again later. To leave out what fails, give --max-error-rate 1." in str(stop)
    (fault,) = crowd(server, 1, first=3, retries=THREE, max_error_rate=1.0)
    assert isinstance(fault, FailedAnswer)


def test_too_much_at_once_is_no_fault_of_a_row(crowd):
    def busy(server: Counted) -> Response:
        return BUSY if server.asked == "question 3" else good(server)

    outcomes = crowd(Counted(busy), 8, limits=Limits(4), retries=Retries(attempts=2, first_wait=0.01))
    assert isinstance(outcomes[3], ProviderError) and not of_type(outcomes, FailedAnswer)


# What a provider does not tell


def untold(server: Counted) -> Response:
    response = good(server)
    del response.body["usage"]
    return response


def test_an_answer_without_its_tokens_has_no_known_price_and_counts_as_the_most_it_may_cost(crowd, tmp_path):
    server, most = Counted(untold), 19 * IN + 200 * OUT
    assert crowd(server, 30, budget=Budget(max_usd=10.5 * most)).count("yes") == 10 == server.came
    crowd(server, 30, budget=Budget(max_usd=10.5 * most))
    assert server.came == 10  # the next run knows
    use = paid_in(tmp_path)["audit", "i2t"]
    assert (use.calls, use.unpriced, use.dollars) == (10, 10, 0.0)


def test_what_has_no_price_needs_no_tokens(crowd, tmp_path):
    assert crowd(Counted(untold), 3, model="openai/mine") == ["yes"] * 3
    assert "at_most" not in (tmp_path / "journal.jsonl").read_text()


def test_max_usd_needs_a_price(tmp_path):
    with Journal(tmp_path / "journal.jsonl") as journal:
        with pytest.raises(UserError, match="no list price is known for 'openai/mine'. Set `max_calls` instead"):
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


@pytest.fixture
def in_batches(tmp_path, monkeypatch):
    """Runs, one after the other: each collects what came, asks its questions and hands them in.

    Gives back for each how many requests are with the provider, and what the journal has paid.
    """
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    async def main(base_url: str, questions: list[list[dict]], max_usd: float) -> tuple[int, float]:
        with Journal(tmp_path / "journal.jsonl") as journal:
            batches = Batches(MODEL, tmp_path / "batches", base_url=base_url)
            chat = ChatModel(MODEL, journal=journal, budget=Budget(max_usd=max_usd), batches=batches)
            await chat.collect()
            asked = (chat.ask(messages, stage="audit", direction="t2i", max_tokens=200) for messages in questions)
            await asyncio.gather(*asked, return_exceptions=True)
            await batches.submit()
            return batches.waiting, journal.dollars

    def run(answer, *runs: tuple[list[list[dict]], float]) -> list[tuple[int, float]]:
        with ChatServer(answer) as server:
            return [asyncio.run(main(server.base_url, *asked)) for asked in runs]

    return run


def billed_at(tokens: int):
    def answer(body: dict) -> Response:
        response = good(None)
        response.body["usage"]["prompt_tokens"] = tokens
        return response

    return answer


def texts(first: int, last: int) -> list[list[dict]]:
    return [[{"role": "user", "content": f"question {number}"}] for number in range(first, last)]


def test_what_is_with_the_provider_counts_before_anything_else_is_paid(tmp_path, monkeypatch):
    """Images, for one, are paid from the same budget."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    async def main(base_url: str) -> None:
        for day in (1, 2):
            with Journal(tmp_path / "journal.jsonl") as journal:
                batches = Batches(MODEL, tmp_path / "batches", base_url=base_url)
                budget = Budget(max_usd=1.0, max_calls=1)
                chat = ChatModel(MODEL, journal=journal, budget=budget, batches=batches)
                await chat.collect()
                if day == 2:
                    with pytest.raises(BudgetSpent, match="max-calls 1 is spent"):
                        budget.commit(0.0)
                    with pytest.raises(BudgetSpent, match="max-usd 1 is spent"):
                        budget.commit(1.0, calls=0)
                    return
                with pytest.raises(Deferred):
                    await chat.ask([{"role": "user", "content": "hello"}], stage="audit", direction="t2i")
                await batches.submit()

    with ChatServer(good) as server:
        server.batches.delay = 3600
        asyncio.run(main(server.base_url))


def test_circuit_stops_a_run_whose_batches_bring_nothing_of_use(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    async def main(base_url: str) -> tuple[int, list]:
        with Journal(tmp_path / "journal.jsonl") as journal:
            batches = Batches(MODEL, tmp_path / "batches", base_url=base_url)
            chat = ChatModel(MODEL, journal=journal, batches=batches)
            await chat.collect()
            asked = (chat.ask(messages, stage="audit", direction="t2i") for messages in texts(0, 80))
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            await batches.submit()
            return batches.waiting, of_type(outcomes, RunStopped)

    with ChatServer(lambda body: "") as server:
        waiting, stops = asyncio.run(main(server.base_url))
        assert waiting == 80 and not stops
        waiting, stops = asyncio.run(main(server.base_url))
    assert waiting == 49 and len(stops) == 31  # the second attempts of those before the circuit broke
    assert "--max-error-rate" in str(stops[0])


def test_batches_hold_to_the_ceiling_though_pictures_are_dear(in_batches):
    buffer = io.BytesIO()
    Image.new("RGB", (1024, 768)).save(buffer, "PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    picture = {"type": "image_url", "image_url": {"url": url}}
    questions = [[*text, {"role": "user", "content": [picture, picture]}] for text in texts(0, 30)]
    tokens = count_tokens(MODEL, questions[0])
    assert tokens > 10 * guess_tokens(questions[0])
    bound = (tokens * IN + 200 * OUT) / 2
    (waiting, _), (_, dollars) = in_batches(billed_at(tokens), (questions, 5.5 * bound), ([], 5.5 * bound))
    assert waiting == 5 and 4 * bound < dollars <= 5 * bound


def test_the_bills_of_a_batch_correct_the_bounds_of_the_next(in_batches):
    tokens = 50_000  # for what is taken for 19
    paid, bound = 4 * (tokens * IN + 100 * OUT) / 2, (tokens * IN + 200 * OUT) / 2
    runs = in_batches(billed_at(tokens), (texts(0, 4), 1.0), (texts(4, 24), paid + 3.5 * bound))
    assert runs == [(4, 0.0), (3, pytest.approx(paid))]


def test_an_answer_in_a_batch_without_its_tokens_counts_as_the_most_it_may_cost(in_batches, tmp_path):
    bound = (19 * IN + 200 * OUT) / 2
    runs = in_batches(lambda body: untold(None), (texts(0, 8), 5.5 * bound), (texts(0, 8), 5.5 * bound))
    assert runs == [(5, 0.0), (0, pytest.approx(5 * bound))]
    assert paid_in(tmp_path)["audit", "t2i"].unpriced == 5
