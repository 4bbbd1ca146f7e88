"""Ceilings and the circuit where questions go in batches, against a provider over HTTP on loopback."""

import asyncio
from math import ceil

import pytest
from ledgers import ledger_in
from provider_server import ProviderServer

from repair_hf.llm.batches import Batches
from repair_hf.llm.client import ChatModel, Deferred
from repair_hf.llm.cost import count_tokens, paid_in
from repair_hf.llm.ledger import BudgetSpent
from repair_hf.runtime.run_folder import RunStopped
from tests.llm.asking import IN, OUT, billed, texts
from tests.llm.asking import PRICED as MODEL

COUNT = count_tokens(MODEL, texts(0, 1)[0])
BOUND = (ceil(1.1 * COUNT) * IN + 200 * OUT) / 2  # of one request, at half the price


@pytest.fixture
def run(tmp_path):
    """Runs once: collects what came, asks its questions and hands them in.

    Returns how many requests are with the provider, what is paid or set aside, and what came of each question.
    """

    async def main(base_url: str, questions: list[list[dict]], **ceilings) -> tuple[int, float, list]:
        with ledger_in(tmp_path, **ceilings) as ledger:
            batches = Batches(MODEL, ledger, base_url=base_url)
            chat = ChatModel(MODEL, ledger=ledger, batches=batches)
            await chat.collect()
            asked = (chat.ask(messages, stage="audit", direction="t2i", max_tokens=200) for messages in questions)
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            await batches.submit()
            return batches.waiting, ledger.total[0], outcomes

    return lambda server, questions, **ceilings: asyncio.run(main(server.url(), questions, **ceilings))


def kinds(outcomes: list) -> set[type]:
    return {type(outcome) for outcome in outcomes}


@pytest.mark.parametrize(("room", "taken", "outcome"), [(5.5, 5, Deferred), (0.5, 0, BudgetSpent)])
def test_batches_take_what_the_ceiling_has_room_for(run, room, taken, outcome):
    with ProviderServer(lambda question: "yes") as server:
        server.batches.delay = 3600
        waiting, _, outcomes = run(server, texts(0, 8) * 2, max_usd=room * BOUND)  # each twice
    assert waiting == taken and kinds(outcomes) == {outcome}


def test_circuit_stops_a_run_whose_batches_bring_nothing_of_use(run):
    with ProviderServer(lambda question: "") as server:
        waiting, _, outcomes = run(server, texts(0, 80))
        assert waiting == 80 and kinds(outcomes) == {Deferred}
        waiting, _, outcomes = run(server, texts(0, 80))
    stops = [outcome for outcome in outcomes if isinstance(outcome, RunStopped)]
    assert waiting == 49 and len(stops) == 31  # the second attempts of those before the circuit broke
    assert "--max-error-rate" in str(stops[0])


def test_an_answer_in_a_batch_without_its_tokens_counts_as_the_most_it_may_cost(run, tmp_path):
    with ProviderServer(lambda question: billed()) as server:
        assert run(server, texts(0, 8), max_usd=5.5 * BOUND)[:2] == (5, pytest.approx(5 * BOUND))
        assert run(server, texts(0, 8), max_usd=5.5 * BOUND)[:2] == (0, pytest.approx(5 * BOUND))
    assert paid_in(tmp_path)["audit", "t2i"].unpriced == 5
