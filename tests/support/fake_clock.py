"""An event loop whose clock stands still while anything is left to do, and jumps to the next timer when nothing is.

So waits cost no time, and how long they were does not depend on the machine.
"""

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

Result = TypeVar("Result")
TURN = 1e-6  # seconds that a turn of the loop takes


class FakeClock:
    """Stands in for the module `time`, and runs coroutines by its own time.

    Attributes:
        now: Seconds since some moment.
    """

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """As `asyncio.run` does, in a loop of its own."""
        with asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner:
            return runner.run(work)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._clock.now


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list:
        if timeout is None:  # nothing is planned: only another thread can help
            return super().select(timeout)
        self._clock.now += timeout + TURN
        return super().select(0)


def time_out_when(is_over: Callable[[], object]) -> SimpleNamespace:
    """Return what stands in for the module `asyncio`: a time-out that is over as soon as something is true."""

    @asynccontextmanager
    async def timeout(seconds: float) -> AsyncIterator[None]:
        async def watch(deadline: asyncio.Timeout) -> None:
            while not is_over():
                await asyncio.sleep(0.01)
            deadline.reschedule(0.0)

        async with asyncio.timeout(seconds) as deadline:
            watching = asyncio.create_task(watch(deadline))
            try:
                yield
            finally:
                watching.cancel()

    return SimpleNamespace(timeout=timeout)
