import asyncio
import random

import pytest
from fake_clock import FakeClock

from repair_hf.llm import limits as limits_module
from repair_hf.llm.errors import PassingError
from repair_hf.llm.limits import Circuit, Limits, _Pace
from repair_hf.runtime.run_folder import RunStopped

TOO_MANY = PassingError("slow down", is_rate_limit=True)
CLOCK = FakeClock()


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(limits_module, "time", CLOCK)


def take(limits: Limits, requests: int, *, seconds: float = 0.0, tokens: int = 0, took: int = 0) -> list[float]:
    """Sends so many requests at once through the limits; returns when each was admitted, in seconds from the start."""
    admitted = []

    async def one() -> None:
        async with limits.slot(tokens) as slot:
            admitted.append(CLOCK.now - start)
            await asyncio.sleep(seconds)
            slot.tokens = took

    async def main() -> None:
        await asyncio.gather(*(one() for _ in range(requests)))

    start = CLOCK.now
    CLOCK.run(main())
    return admitted


async def send(limits: Limits, failure: PassingError | None = None) -> None:
    async with limits.slot(0):
        if failure is not None:
            raise failure


def at_once(limits: Limits) -> int:
    """How many the limits let in side by side."""

    async def main() -> int:
        inside, end = 0, asyncio.Event()

        async def one() -> None:
            nonlocal inside
            async with limits.slot(0):
                inside += 1
                await end.wait()

        tasks = [asyncio.create_task(one()) for _ in range(100)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return inside

    return CLOCK.run(main())


def test_concurrency():
    assert at_once(Limits(3)) == 3
    assert at_once(Limits(8, processes=4)) == 2 and at_once(Limits(3, processes=4)) == 1


def test_turns_come_in_order():
    async def main() -> list[int]:
        limits, order = Limits(1), []

        async def one(number: int) -> None:
            async with limits.slot(0):
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(one(number) for number in range(20)))
        return order

    assert CLOCK.run(main()) == list(range(20))


def test_requests_per_minute_are_spread_over_it():
    admitted = take(Limits(50, requests_per_minute=1200), 30)  # 20 a second; half a second's worth may catch up
    assert 0.9 < admitted[-1] < 1.5
    assert sum(moment < 0.25 for moment in admitted) <= 10 + 5 + 1  # the half second, the quarter, the first


@pytest.mark.parametrize("latest", [0.0, 0.4, 30.0])
def test_no_minute_sees_more_than_is_allowed(latest):
    rng, pace, now, admitted = random.Random(0), _Pace(20, processes=1), 1000.0, []
    for _ in range(500):
        now = max(now, pace.ready_at) + rng.choice([0.0, latest * rng.random()])  # late by so many seconds at times
        pace.take(1, now)
        admitted.append(now)
    assert all(later - first > 60 - 1e-6 for first, later in zip(admitted, admitted[20:], strict=False))
    if latest < 0.5:  # a little lateness is caught up with
        assert admitted[-1] - admitted[0] < 500 * 60.5 / 20


def test_processes_share_the_minute():
    alone = take(Limits(50, requests_per_minute=2400), 40)[-1]
    shared = take(Limits(50, requests_per_minute=2400, processes=2), 40)[-1]
    assert shared > alone + 0.5


def test_tokens_per_minute_count_what_was_taken_not_what_was_feared():
    feared = dict(tokens=60_000, took=600)  # a minute each, if they took it
    assert take(Limits(1, tokens_per_minute=60_000), 4, **feared)[-1] < 2
    used = take(Limits(50, tokens_per_minute=60_000), 6, tokens=500, took=500)  # 1,000 a second
    assert 1.5 < used[-1] < 3


def test_more_tokens_than_expected_are_made_up_for():
    async def main() -> float:
        limits = Limits(50, tokens_per_minute=60_000)
        async with limits.slot(0) as slot:
            slot.tokens = 1500
        start = CLOCK.now
        await send(limits)
        return CLOCK.now - start

    assert 0.8 < CLOCK.run(main()) < 1.6


def test_429_halves_and_answers_bring_back_slowly():
    async def main(limits: Limits, outcomes: list[PassingError | None]) -> None:
        for outcome in outcomes:
            await asyncio.gather(send(limits, outcome), return_exceptions=True)

    limits = Limits(16)
    wait_for_nothing = PassingError("slow down", 0.0, is_rate_limit=True)
    CLOCK.run(main(limits, [wait_for_nothing]))
    assert at_once(limits) == 8
    CLOCK.run(main(limits, [wait_for_nothing] * 5))
    assert at_once(limits) == 1
    CLOCK.run(main(limits, [None] * 4))
    assert 1 <= at_once(limits) <= 2
    CLOCK.run(main(limits, [None] * 1000))
    assert at_once(limits) == 16


@pytest.mark.parametrize(("is_rate_limit", "left"), [(True, 8), (False, 16)])  # other failures do not slow down
def test_429s_that_were_under_way_together_are_one_warning(is_rate_limit, left):
    async def main(limits: Limits) -> None:
        ready = asyncio.Barrier(16)

        async def one() -> None:
            async with limits.slot(0):
                await ready.wait()
                raise PassingError("slow down", 0.0, is_rate_limit=is_rate_limit)

        await asyncio.gather(*(one() for _ in range(16)), return_exceptions=True)

    limits = Limits(16)
    CLOCK.run(main(limits))
    assert at_once(limits) == left


@pytest.mark.parametrize(
    ("failures", "pause"),
    [
        ([PassingError("slow down", 0.4, is_rate_limit=True)], 0.4),
        ([TOO_MANY], limits_module.FIRST_PAUSE),
        ([TOO_MANY, TOO_MANY], limits_module.FIRST_PAUSE * 2),
    ],
)
def test_after_a_429_everyone_waits(failures, pause):
    async def main() -> float:
        limits = Limits(16)
        for failure in failures:
            await asyncio.gather(send(limits, failure), return_exceptions=True)
            start = CLOCK.now
        await asyncio.gather(*(send(limits) for _ in range(4)))
        return CLOCK.now - start

    assert CLOCK.run(main()) == pytest.approx(pause, abs=1e-3)


def test_whoever_gives_up_leaves_his_turn():
    async def main() -> None:
        go = asyncio.Event()

        async def hold() -> None:
            async with limits.slot(0):
                await go.wait()
            waiting[0].cancel()  # it has just been admitted, and does not know yet
            waiting[1].cancel()  # it has not

        holder = asyncio.create_task(hold())
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(send(limits)) for _ in range(3)]
        await asyncio.sleep(0)
        go.set()
        outcomes = await asyncio.gather(holder, *waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), *[asyncio.CancelledError] * 2, type(None)]

    limits = Limits(1)
    CLOCK.run(asyncio.wait_for(main(), 5))
    assert at_once(limits) == 1


def test_limits_outlive_an_event_loop():
    limits = Limits(2, requests_per_minute=6000)

    async def interrupted() -> None:
        tasks = [asyncio.create_task(send(limits)) for _ in range(200)]
        await asyncio.wait(tasks, timeout=0.05)  # the rest is cancelled with the loop

    CLOCK.run(interrupted())
    assert len(take(limits, 4)) == 4


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
