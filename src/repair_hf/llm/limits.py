"""Limits: how much a provider is asked at once, and when to stop asking.

In:  what the user allows (requests at once, requests and tokens per minute, share of failures), and how each request went.
Out: its turn for each request; `RunStopped` where too much fails.

`Limits` asks less of a provider that says it is too much (429): it halves the number of requests at once, holds everything back for
a while, and comes back slowly. `Circuit` ends a run whose requests fail, or whose answers are of no use, more often than is allowed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from repair_hf.llm.failures import PassingFailure
from repair_hf.options import UserError
from repair_hf.runs import RunStopped

logger = logging.getLogger(__name__)

GROWTH = 0.25  # one request more at once for each four rounds of answers without a 429
FIRST_PAUSE, LONGEST_PAUSE = (
    0.5,
    30.0,
)  # seconds, after a 429 that names no wait; doubled by each that follows without an answer between
LONGEST_NAMED_PAUSE = 120.0  # whoever is told to wait longer ends the run; nothing need be held back for the next

SLACK = 0.5  # seconds by which requests that came late may catch up with the pace
MINUTE = 60.0


@dataclass
class Slot:
    """One request's turn.

    Args:
        tokens: What it was expected to take of the tokens per minute; set it to what it took.
    """

    tokens: int


class Limits:
    """Turns for requests.

    Args:
        concurrency: Requests at once, at most; after a 429 fewer for a while.
        requests_per_minute: No minute sees more; None for no limit.
        tokens_per_minute: Likewise, prompts and answers together.
        processes: How many processes share the limits, each of them keeping to its part.
    """

    def __init__(
        self,
        concurrency: int = 16,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        *,
        processes: int = 1,
    ) -> None:
        if concurrency < 1:
            raise UserError(f"`concurrency` must be at least 1, got {concurrency}.")
        for name, limit in (("requests_per_minute", requests_per_minute), ("tokens_per_minute", tokens_per_minute)):
            if limit is not None and limit < 1:
                raise UserError(f"`{name}` must be at least 1, got {limit}.")
        self.concurrency = max(concurrency // processes, 1)
        self._allowed = float(self.concurrency)
        self._requests = _Pace(requests_per_minute, processes)
        self._tokens = _Pace(tokens_per_minute, processes)
        self._under_way = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed_until, self._pause, self._slowed_at = 0.0, FIRST_PAUSE, 0.0

    @asynccontextmanager
    async def slot(self, tokens: int) -> AsyncIterator[Slot]:
        """Wait for a turn, and keep it while the request is under way. First come, first served."""
        admitted = asyncio.get_running_loop().create_future()
        self._waiting.append((admitted, tokens))
        self._admit()
        try:
            await admitted
        except asyncio.CancelledError:
            if not admitted.cancelled():  # admitted in the very moment in which it was given up
                self._leave()
            raise
        slot, began = Slot(tokens), time.monotonic()
        try:
            yield slot
        except PassingFailure as failure:
            if failure.is_rate_limit:
                self._slow_down(began, failure.named_wait)
            raise
        else:
            self._speed_up()
        finally:
            self._tokens.take(slot.tokens - tokens, time.monotonic())
            self._leave()

    def _leave(self) -> None:
        self._under_way -= 1
        self._admit()

    def _admit(self) -> None:
        """Let in whoever may go now, and come back when the next one may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting and self._under_way < int(self._allowed):
            admitted, tokens = self._waiting[0]
            now = time.monotonic()
            opens = max(self._closed_until, self._requests.ready_at, self._tokens.ready_at)
            if opens > now and not admitted.done():
                self._timer = admitted.get_loop().call_later(opens - now, self._admit)
                return
            self._waiting.popleft()
            if admitted.done():  # given up
                continue
            self._requests.take(1, now)
            self._tokens.take(tokens, now)
            self._under_way += 1
            admitted.set_result(None)

    def _slow_down(self, began: float, named_wait: float | None) -> None:
        """After a 429. Those that were under way together are one warning, not many."""
        now = time.monotonic()
        self._closed_until = max(self._closed_until, now + min(named_wait or 0.0, LONGEST_NAMED_PAUSE))
        if began <= self._slowed_at:  # a coarse clock may show one moment for both
            return
        self._slowed_at = now
        self._allowed = max(self._allowed / 2, 1.0)
        if named_wait is None:
            self._closed_until = max(self._closed_until, now + self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        logger.info("Too many requests, says the provider: from here %d at once.", self._allowed)

    def _speed_up(self) -> None:
        self._pause = FIRST_PAUSE
        self._allowed = min(self._allowed + GROWTH / self._allowed, float(self.concurrency))


class _Pace:
    """So much per minute, spread evenly: whoever takes something moves the moment at which the next may.

    Args:
        per_minute: None for no limit.
        processes: How many share it.
    """

    def __init__(self, per_minute: int | None, processes: int) -> None:
        self._seconds_each = 0.0 if per_minute is None else (MINUTE + SLACK) * processes / per_minute
        self.ready_at = 0.0

    def take(self, amount: int, now: float) -> None:
        """Take now; a negative amount gives back."""
        start = self.ready_at if amount < 0 else max(self.ready_at, now - SLACK)
        self.ready_at = start + amount * self._seconds_each


class Circuit:
    """Ends a run in which too much goes wrong.

    Args:
        max_error_rate: The share of failures that is put up with; 1 puts up with all.
        window: How many of the latest attempts are looked at.
        at_least: No verdict before so many.
    """

    def __init__(self, max_error_rate: float = 0.5, *, window: int = 200, at_least: int = 50) -> None:
        if not 0 <= max_error_rate <= 1:
            raise UserError(f"`max_error_rate` is a share between 0 and 1, got {max_error_rate}.")
        self.max_error_rate, self.at_least = max_error_rate, at_least
        self._latest: deque[bool] = deque(maxlen=max(window, at_least))

    def note(self, fault: str | None) -> None:
        """Take note of one attempt: what went wrong, or None.

        Raises:
            RunStopped: If too much has gone wrong of late.
        """
        self._latest.append(fault is not None)
        seen, failed = len(self._latest), sum(self._latest)
        if fault is None or seen < self.at_least or failed <= self.max_error_rate * seen:
            return
        raise RunStopped(
            f"{failed} of the last {seen} requests failed or brought answers of no use, which is more than --max-error-rate "
            f"{self.max_error_rate:g}; the last one: {fault}. Every answer so far is kept; run the same command again later."
        )
