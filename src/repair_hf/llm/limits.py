"""Rate limits of a provider, and the error rate at which a run stops.

`Limits` bounds requests at once, requests per minute and tokens per minute. After a 429 it halves the requests at
once, pauses all of them, and recovers slowly. `Circuit` stops a run whose requests fail, or whose answers are
unusable, too often.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from repair_hf.llm.errors import LATER, PassingError
from repair_hf.llm.options import RequestOptions
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import RunStopped

logger = logging.getLogger(__name__)

GROWTH = 0.25  # one more request at once for every four rounds of answers without a 429
# Seconds to pause after a 429 that names no wait; doubled by each further 429 before the next answer.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
LONGEST_NAMED_PAUSE = 120.0  # a provider that asks for more ends the run

SLACK = 0.5  # seconds that late requests may catch up
ENOUGH = 50  # attempts before the circuit can stop a run


@dataclass
class Slot:
    """One request's turn; set `tokens`, the expected number of tokens, to the number it took."""

    tokens: int


class Limits:
    """Grants requests their turns, first come, first served.

    Args:
        concurrency: Maximum number of requests at once; after a 429 fewer for a while.
        requests_per_minute: Maximum in any minute; None for no limit.
        tokens_per_minute: Maximum in any minute, prompts and answers together; None for no limit.
        processes: How many processes share the limits; each keeps to its part.

    Attributes:
        has_tokens: Whether there is a limit of tokens.
    """

    def __init__(
        self,
        concurrency: int = 16,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        *,
        processes: int = 1,
    ) -> None:
        self.concurrency = max(concurrency // processes, 1)
        self._allowed = float(self.concurrency)
        self.has_tokens = tokens_per_minute is not None
        self._requests = _Pace(requests_per_minute, processes)
        self._tokens = _Pace(tokens_per_minute, processes)
        self._gate: _Gate | None = None
        self._closed_until, self._pause, self._slowed_at = 0.0, FIRST_PAUSE, 0.0

    @classmethod
    def of(cls, options: RequestOptions) -> Limits:
        """Return the limits that options set; the processes of a run share them."""
        per_minute = options.requests_per_minute, options.tokens_per_minute
        return cls(options.concurrency, *per_minute, processes=processes().count)

    @property
    def places(self) -> asyncio.Semaphore:
        """Places for requests at once, each to be held from the first attempt to the last, waits included."""
        return self._open_gate().places

    @asynccontextmanager
    async def slot(self, tokens: int) -> AsyncIterator[Slot]:
        """Wait for a turn, and keep it during one attempt."""
        gate = self._open_gate()
        async with gate.turn:  # which waits first come, first served
            while (wait := self._wait(gate)) is None or wait > 0:
                gate.has_changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(gate.has_changed.wait(), wait)
            began = time.monotonic()
            self._requests.take(1, began)
            self._tokens.take(tokens, began)
            gate.under_way += 1
        slot = Slot(tokens)
        try:
            yield slot
        except PassingError as error:
            if error.is_rate_limit:
                self._slow_down(began, error.named_wait)
            raise
        else:
            self._speed_up()
        finally:
            self._tokens.take(slot.tokens - tokens, time.monotonic())
            gate.under_way -= 1
            gate.has_changed.set()

    def _open_gate(self) -> _Gate:
        loop = asyncio.get_running_loop()
        if self._gate is None or self._gate.loop is not loop:
            self._gate = _Gate(loop, asyncio.Semaphore(self.concurrency))
        return self._gate

    def _wait(self, gate: _Gate) -> float | None:
        """Return the seconds until the next request may go; None if another one has to end first."""
        if gate.under_way >= int(self._allowed):
            return None
        return max(self._closed_until, self._requests.ready_at, self._tokens.ready_at) - time.monotonic()

    def _slow_down(self, began: float, named_wait: float | None) -> None:
        """Ask less after a 429; several 429s from requests in flight together count once."""
        now = time.monotonic()
        self._closed_until = max(self._closed_until, now + min(named_wait or 0.0, LONGEST_NAMED_PAUSE))
        if began <= self._slowed_at:  # a coarse clock may show one moment for both
            return
        self._slowed_at = now
        before, self._allowed = self._allowed, max(self._allowed / 2, 1.0)
        if named_wait is None:
            self._closed_until = max(self._closed_until, now + self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        if int(before) > int(self._allowed):
            logger.info("The provider reports too many requests: %d at once from now on.", self._allowed)

    def _speed_up(self) -> None:
        self._pause = FIRST_PAUSE
        self._allowed = min(self._allowed + GROWTH / self._allowed, float(self.concurrency))


@dataclass
class _Gate:
    """What waits and is under way in one event loop: each run of a synthesis has a loop of its own."""

    loop: asyncio.AbstractEventLoop
    places: asyncio.Semaphore
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    has_changed: asyncio.Event = field(default_factory=asyncio.Event)
    under_way: int = 0


class _Pace:
    """A number per minute, spread evenly; `ready_at` is when the next request may go."""

    def __init__(self, per_minute: int | None, processes: int) -> None:
        self._seconds_each = 0.0 if per_minute is None else (60.0 + SLACK) * processes / per_minute
        self.ready_at = 0.0

    def take(self, amount: int, now: float) -> None:
        """Take now; a negative amount gives back."""
        start = self.ready_at if amount < 0 else max(self.ready_at, now - SLACK)
        self.ready_at = start + amount * self._seconds_each


class Circuit:
    """Stops a run in which too many attempts fail.

    Args:
        max_error_rate: Highest tolerated share of failures; 1 tolerates all.
        window: How many of the latest attempts count.
    """

    def __init__(self, max_error_rate: float = 0.5, *, window: int = 200) -> None:
        self.max_error_rate = max_error_rate
        self._latest: deque[bool] = deque(maxlen=window)

    def note(self, fault: str | None) -> None:
        """Note one attempt: what went wrong, or None. Raise `RunStopped` if too many of the latest failed."""
        self._latest.append(fault is not None)
        seen, failed = len(self._latest), sum(self._latest)
        if fault is None or seen < ENOUGH or failed <= self.max_error_rate * seen:
            return
        raise RunStopped(
            f"{failed} of the last {seen} requests failed or brought unusable answers, more than --max-error-rate "
            f"{self.max_error_rate:g} allows; the last one: {fault}. {LATER}"
        )
