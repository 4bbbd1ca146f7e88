"""Limits, ceilings and the circuit as the client keeps them, against a provider over HTTP on loopback."""

import asyncio
import re
import threading
import time

import pytest
from ledgers import ledger_in, rows
from provider_server import Question, Wire, error

from repair_hf.llm.answers import FailedAnswer
from repair_hf.llm.client import ChatModel, ProviderError
from repair_hf.llm.cost import paid_in
from repair_hf.llm.ledger import BudgetSpent
from repair_hf.llm.sending import Retries
from repair_hf.records.columns import REASONS
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped
from tests.llm.asking import IN, OUT, QUICK, billed, texts
from tests.llm.asking import PRICED as MODEL

BILL = 1000 * IN + 100 * OUT

BUSY = Wire(429, error("openai", 429, "slow down"))
BROKEN = Wire(500, error("openai", 500, "boom"))


class Counted:
    """Answers in so many seconds, and counts the requests: all, those answered, those here at once.

    `asked` is the last question. A request other than the first waits until `meeting` were here at once, for up to a
    minute.
    """

    def __init__(self, answer, seconds: float = 0.01, *, meeting: int = 1) -> None:
        self.answer, self.seconds, self.lock = answer, seconds, threading.Lock()
        self.came = self.answered = self.here = self.most = 0
        self.meeting, self.have_met = meeting, threading.Event()

    def __call__(self, question: Question) -> str | Wire:
        with self.lock:
            self.came += 1
            self.here += 1
            self.most = max(self.most, self.here)
            self.asked = question.messages[0]["content"]
            answer = self.answer(self)
            if self.here >= self.meeting:
                self.have_met.set()
            is_first = self.came == 1
        time.sleep(self.seconds)
        if not is_first:
            self.have_met.wait(60)
        with self.lock:
            self.here -= 1
            self.answered += answer not in (BUSY, BROKEN)
        return answer


@pytest.fixture
def crowd(with_chat):
    """Asks many questions at once; returns what came of each."""

    def run(server: Counted, questions: int, *, first: int = 0, model=MODEL, **options):
        async def work(chat):
            asked = (
                chat.ask(messages, stage="audit", direction="i2t", max_tokens=200)
                for messages in texts(first, first + questions)
            )
            return await asyncio.gather(*asked, return_exceptions=True)

        return with_chat(server, work, model, **{"retries": Retries(first_wait=0.05)} | options)

    return run


def good(_: Counted) -> str:
    return "yes"


def of_type(outcomes: list, kind: type) -> list:
    return [outcome for outcome in outcomes if isinstance(outcome, kind)]


def test_a_server_that_serves_few_at_once_answers_all(crowd):
    server = Counted(lambda server: BUSY if server.here > 4 else good(server), meeting=5)
    outcomes = crowd(server, 60, concurrency=32, max_error_rate=0.2)
    assert outcomes == ["yes"] * 60
    assert 4 < server.most <= 32


def test_circuit_stops_a_run_whose_requests_fail(crowd):
    server = Counted(lambda server: BROKEN)
    outcomes = crowd(server, 100, concurrency=16, retries=Retries(attempts=100, first_wait=0.01))
    stops = of_type(outcomes, RunStopped)
    allowed = r"requests failed or brought unusable answers, more than --max-error-rate 0.5 allows; the last one: boom"
    assert re.search(rf"\d+ of the last \d+ {allowed}.*same command", str(stops[0]))


def test_what_is_rejected_costs_nothing(crowd, tmp_path):
    bad = {f"question {number}" for number in range(1, 90, 3)}

    def reject_some(server: Counted) -> str | Wire:
        return Wire(400, error("openai", 400, "too large")) if server.asked in bad else good(server)

    server = Counted(reject_some, seconds=0)
    outcomes = crowd(server, 1) + crowd(server, 89, first=1, concurrency=4)
    assert outcomes.count("yes") == 60 and len(of_type(outcomes, FailedAnswer)) == 30 and server.came == 90
    assert crowd(server, 1, first=90, max_calls=61) == ["yes"]  # a rejection is no answer
    assert paid_in(tmp_path)["audit", "i2t"].calls == 61


def test_circuit_stops_a_run_whose_answers_are_of_no_use_and_more_attempts_ask_again(crowd):
    outcomes = crowd(Counted(lambda server: ""), 100, concurrency=4)
    assert "unusable answers" in str(of_type(outcomes, RunStopped)[0])
    assert crowd(Counted(good), 100, concurrency=4, answer_attempts=3) == ["yes"] * 100


def test_max_usd_holds_for_the_folder(crowd):
    server = Counted(good, meeting=2)
    outcomes = crowd(server, 60, concurrency=16, max_usd=20.9 * BILL)
    assert 18 <= server.came <= 21 and len(of_type(outcomes, BudgetSpent)) == 60 - server.came
    assert server.most > 1  # only the first went alone
    crowd(server, 60, concurrency=16, max_usd=30.9 * BILL)
    assert 28 <= server.came <= 32  # the first bill of each run counts as what was reserved, which is less


def test_the_first_bill_beyond_its_reserve_counts_as_that_and_the_others_in_full(crowd, caplog):
    dear = billed(prompt_tokens=50_000)  # as gpt-4o-mini bills pictures, 33 times as much as others
    server, bill = Counted(lambda server: dear), 50_000 * IN + 100 * OUT
    crowd(server, 40, concurrency=16, max_usd=10.5 * bill)
    assert server.came == 11 and caplog.text.count("reserved at the bill") == 1


# What fails again and again


def failing(server: Counted) -> str | Wire:
    return BROKEN if server.asked == "question 3" else good(server)


def test_a_request_that_always_fails_costs_its_row_alone(crowd):
    server = Counted(failing)
    outcomes = crowd(server, 40, concurrency=4, retries=QUICK)
    (fault,) = of_type(outcomes, FailedAnswer)
    assert outcomes.index(fault) == 3 and outcomes.count("yes") == 39 and server.came == 39 + 3
    assert fault.drop_reason in REASONS and str(fault) == f"{MODEL} failed 3 times in a row, at last with: boom"
    assert crowd(server, 5, concurrency=4, first=40, retries=QUICK) == ["yes"] * 5
    server.answer = good
    assert crowd(server, 1, first=3) == ["yes"]  # it was not for ever


def test_a_request_that_fails_where_none_is_answered_stops_the_run_unless_failures_are_put_up_with(crowd):
    server = Counted(failing)
    (stop,) = crowd(server, 1, first=3, retries=QUICK)
    assert isinstance(stop, ProviderError) and "failed 3 times in a row" in str(stop)
    assert "same command again later. To leave out what fails, give --max-error-rate 1." in str(stop)
    (fault,) = crowd(server, 1, first=3, retries=QUICK, max_error_rate=1.0)
    assert isinstance(fault, FailedAnswer)


def test_too_much_at_once_is_no_fault_of_a_row(crowd):
    server = Counted(lambda server: BUSY if server.asked == "question 3" else good(server))
    outcomes = crowd(server, 8, concurrency=4, retries=Retries(attempts=2, first_wait=0.01))
    assert isinstance(outcomes[3], ProviderError) and not of_type(outcomes, FailedAnswer)


# What a provider does not report


def test_what_has_no_price_needs_no_tokens(crowd, tmp_path):
    assert crowd(Counted(lambda server: billed()), 3, model="openai/mine") == ["yes"] * 3
    assert [row["worst"] for row in rows(tmp_path)] == [0.0] * 3


def test_max_usd_needs_a_price(tmp_path):
    with (
        ledger_in(tmp_path, max_usd=1.0) as ledger,
        pytest.raises(UserError, match="no list price is known for 'openai/mine'. State it with --price"),
    ):
        ChatModel("openai/mine", ledger=ledger)
    with ledger_in(tmp_path, max_calls=1) as ledger:
        ChatModel("openai/mine", ledger=ledger)
