import asyncio
import random

import pytest

from repair_hf.llm.budget import Budget, BudgetSpent


async def spend(budget: Budget, worst: float, paid: float | None, *, calls: int = 1) -> None:
    async with budget.hold(lambda: worst, calls=calls) as hold:
        await asyncio.sleep(0.001)
        if paid is None:
            raise ConnectionError
        hold.paid = paid


def spend_all(budget: Budget, requests: list[tuple[float, float | None]]) -> list[BaseException | None]:
    """Sends (worst, paid) at once; for each what came of it."""

    async def main():
        return await asyncio.gather(*(spend(budget, *request) for request in requests), return_exceptions=True)

    return asyncio.run(main())


def served(outcomes: list[BaseException | None]) -> int:
    return sum(outcome is None for outcome in outcomes)


def test_a_failed_request_is_no_call_and_costs_nothing():
    budget = Budget(max_usd=1.0, max_calls=5)
    assert served(spend_all(budget, [(0.5, None)] * 10)) == 0
    assert served(spend_all(budget, [(0.1, 0.1)] * 5)) == 5


def test_dollars_are_bounded_by_what_a_request_may_cost():
    assert served(spend_all(Budget(max_usd=1.0), [(0.3, 0.3)] * 20)) == 3
    assert served(spend_all(Budget(max_usd=0.2), [(0.3, 0.01)])) == 0


def test_the_room_that_others_do_not_need_is_used():
    budget = Budget(max_usd=1.0)
    assert served(spend_all(budget, [(0.3, 0.04)] * 40)) == 18  # 0.72 paid; 0.3 more would pass 1


def test_no_order_of_bills_passes_the_ceiling():
    rng = random.Random(0)
    for _ in range(50):
        requests = [(worst, worst * rng.random()) for worst in (rng.random() for _ in range(30))]
        budget, ceiling, paid = Budget(max_usd=4.0), 4.0, 0.0
        for (_, bill), outcome in zip(requests, spend_all(budget, requests), strict=True):
            paid += bill if outcome is None else 0.0
        assert 2.0 < paid <= ceiling


def test_earlier_runs_count():
    budget = Budget(max_usd=1.0, max_calls=10)
    budget.count(0.5, 8)
    assert served(spend_all(budget, [(0.1, 0.1)] * 20)) == 2
    with pytest.raises(
        BudgetSpent, match=r"--max-calls 10 is reached: 10 answers are paid.*Rerun with a higher ceiling"
    ):
        raise next(outcome for outcome in spend_all(budget, [(0.0, 0.0)]) if outcome)
    dear = Budget(max_usd=1.0)
    dear.count(0.95)
    with pytest.raises(
        BudgetSpent, match=r"--max-usd 1 is reached: \$0.9500 are paid, and the next request may cost \$0.1000"
    ):
        raise spend_all(dear, [(0.1, 0.1)])[0]


def test_processes_hold_to_their_parts():
    together = 0
    for before in (0, 3, 6):  # each process starts when those before it have paid
        budget = Budget(max_calls=10, processes=3)
        budget.count(0.0, before)
        together += served(spend_all(budget, [(0.0, 0.0)] * 20))
    assert 3 < together <= 10
    assert served(spend_all(Budget(max_usd=1.0, processes=2), [(0.2, 0.2)] * 20)) == 2


def test_an_edited_image_is_no_call():
    budget = Budget(max_usd=1.0, max_calls=0)
    asyncio.run(spend(budget, 0.5, 0.5, calls=0))
    with pytest.raises(BudgetSpent, match="--max-usd"):
        asyncio.run(spend(budget, 0.6, 0.6, calls=0))


def test_what_is_committed_stays_set_aside():
    budget = Budget(max_usd=1.0)
    for _ in range(3):
        budget.commit(0.3)
    with pytest.raises(BudgetSpent):
        budget.commit(0.3)
    assert served(spend_all(budget, [(0.2, 0.1)])) == 0


def test_a_budget_outlives_an_event_loop():
    budget = Budget(max_calls=2)

    async def interrupted() -> None:
        tasks = [asyncio.create_task(spend(budget, 0.0, 0.0)) for _ in range(4)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(interrupted())
    assert served(spend_all(budget, [(0.0, 0.0)] * 4)) == 2


def test_whoever_gives_up_waiting_is_not_missed():
    async def main() -> None:
        budget = Budget(max_calls=1)
        tasks = [asyncio.create_task(spend(budget, 0.0, None)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ConnectionError, asyncio.CancelledError, ConnectionError]

    asyncio.run(main())
