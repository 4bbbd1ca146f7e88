"""A model at a provider: its requests stay below the ceilings, and are sent again after errors that pass.

All that costs money goes through here, answers and images alike:

- asked again now: a bad connection, a time-out, 5xx, each after a longer wait; after a 429 all requests wait.
- dropped, and asked again by the next run: a rejected request, or one all of whose attempts failed.
- the run stops: a wrong key, an empty account, a ceiling, or too many failures.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from repair_hf.llm.answers import FailedAnswer
from repair_hf.llm.ledger import Ledger, Reply, Topic
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.provider import LATER, PassingError, ProviderError, RejectedRequest, UnreadableReply, as_error
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import RunStopped

logger = logging.getLogger(__name__)

# How many attempts the circuit looks back over, and how many it needs before it can stop a run. When a provider
# stumbles, all requests on their way fail together, and the retries need time to find out whether it recovers.
WINDOW, WINDOW_PER_PLACE = 200, 16
ENOUGH, ENOUGH_PER_PLACE = 50, 4
MARGIN = 1.0  # seconds that LiteLLM's own time-outs get first; they only limit the wait for the next byte
LOG_EVERY = 60.0  # seconds between two log lines on errors that pass


@dataclass(frozen=True)
class Retries:
    """How long to keep retrying a failing provider. The waits double, unless the provider names a time.

    Args:
        attempts: Requests in all, the first one included; also how many pauses after a 429 may follow each other.
        first_wait: Upper bound of the first wait, in seconds.
        longest_wait: Limit of that bound.
        patience: Longest wait, in seconds, that a provider may ask for; if it asks for more, the run stops.
    """

    attempts: int = 8
    first_wait: float = 0.5
    longest_wait: float = 30.0
    patience: float = 120.0

    def wait_after(self, error: PassingError, attempt: int) -> float:
        """Return the seconds to wait before the next attempt: random ones (full jitter), but not after a 429.

        Raises:
            ProviderError: If the provider asks for too long a wait.
        """
        bound = min(self.longest_wait, self.first_wait * 2 ** (attempt - 1))
        if error.named_wait is None:
            return bound if error.is_rate_limit else random.uniform(0, bound)
        if error.named_wait > self.patience:
            raise ProviderError(f"the provider asks to wait {error.named_wait:.0f} s: {error}. {LATER}") from error
        return error.named_wait + random.uniform(0, min(bound, 1.0))


class Circuit:
    """Stops a run in which too many attempts fail.

    Args:
        max_error_rate: Highest tolerated share of failures; 1 tolerates all.
        places: How many requests are sent at once.
    """

    def __init__(self, max_error_rate: float, places: int) -> None:
        self.max_error_rate = max_error_rate
        self._latest: deque[bool] = deque(maxlen=max(WINDOW, WINDOW_PER_PLACE * places))
        self._enough = max(ENOUGH, ENOUGH_PER_PLACE * places)

    def note(self, fault: str | None) -> None:
        """Note one attempt: what went wrong, or None. Raise `RunStopped` if too many of the latest failed."""
        self._latest.append(fault is not None)
        count, failed = len(self._latest), sum(self._latest)
        if fault is None or count < self._enough or failed <= self.max_error_rate * count:
            return
        raise RunStopped(
            f"{failed} of the last {count} requests failed or brought unusable answers, more than --max-error-rate "
            f"{self.max_error_rate:g} allows; the last one: {fault}. {LATER}"
        )


class PaidModel:
    """A model that is paid through a ledger. Use it for one run, in one event loop at a time.

    Args:
        has_price: Whether its price is known; a ceiling in dollars needs one.

    Attributes:
        circuit: Learns here of failed attempts; the caller notes unusable answers.

    Raises:
        UserError: If there is a ceiling in dollars and no known price.
    """

    def __init__(
        self,
        model: str,
        ledger: Ledger,
        options: RequestOptions,
        *,
        has_price: bool,
        retries: Retries | None = None,
    ) -> None:
        if ledger.max_usd is not None and not has_price:
            raise UserError(
                f"`max_usd` cannot be enforced: no list price is known for {model!r}. "
                "State it with --price or --editor-price, or use `max_calls`, which limits answers and hosted images."
            )
        self.model, self.ledger = model, ledger
        self.retries = retries or Retries()
        self.concurrency, self.timeout = options.concurrency, options.timeout
        places = max(options.concurrency // processes().count, 1)
        self.circuit = Circuit(options.max_error_rate, places)
        self._count = places
        self.enter_loop()
        self._tasks: dict[str, asyncio.Task[tuple[Reply, bool]]] = {}
        self._on_wire: set[asyncio.Task | None] = set()
        self._is_drained = False
        self._pauses = 0  # 429s in a row
        self._paused_at = 0.0  # the last of them
        self._open_at = 0.0  # when requests may be sent again
        self._logged_at = -LOG_EVERY

    def enter_loop(self) -> None:
        """Use the event loop that runs next: a semaphore belongs to one."""
        self._places = asyncio.Semaphore(self._count)

    async def pay(
        self, key: str, topic: Topic, worst: Callable[[], float], send: Callable[[], Awaitable[Reply]]
    ) -> tuple[Reply, bool]:
        """Return the answer to a question that the caller did not find in the ledger, and whether it was paid now.

        Equal questions that are asked at the same time share a payment, for one of the callers. If another process
        has paid meanwhile, its answer is returned.

        Args:
            key: Digest of what is asked.
            topic: Labels of the call in the ledger.
            worst: Returns the most that it may cost, in dollars; called when it is about to be sent.
            send: Sends the request once.

        Raises:
            FailedAnswer: If it was rejected or all attempts failed, and the run can go on without the answer.
            RunStopped: If it cannot go on.
        """
        task = self._tasks.get(key)
        if task is not None:
            return (await asyncio.shield(task))[0], False
        if self._is_drained:
            raise asyncio.CancelledError
        task = self._tasks[key] = asyncio.create_task(self._insist(key, topic, worst, send))
        task.add_done_callback(lambda task: self._forget(key, task))
        return await asyncio.shield(task)  # it is paid for even if the caller is cancelled

    async def call(self, function: Callable[..., Awaitable[Any]], **request: Any) -> Any:
        """Await one of LiteLLM's functions, once, for at most `timeout` seconds.

        Raises:
            PassingError, RejectedRequest, BlockedContent, ProviderError: As `as_error`.
        """
        try:
            async with asyncio.timeout(self.timeout + MARGIN):
                return await function(model=self.model, timeout=self.timeout, **request)
        except TimeoutError:
            reason = f"no whole response after {self.timeout:g} s"
            raise PassingError(reason, may_be_billed=True) from None
        except Exception as error:
            raise as_error(error, self.model) from None  # the traceback of LiteLLM's exception could show a key

    async def drain(self, seconds: float = 60.0) -> None:
        """Send nothing new, and wait for the replies that are on their way; they are paid for already."""
        self._is_drained = True
        for task in set(self._tasks.values()) - self._on_wire:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=seconds)

    async def _insist(
        self, key: str, topic: Topic, worst: Callable[[], float], send: Callable[[], Awaitable[Reply]]
    ) -> tuple[Reply, bool]:
        """Attempt until a reply comes."""
        attempt, unreadable = 1, 0
        async with self._places:  # a provider that is down gets few requests
            while True:
                while (wait := self._open_at - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                if self._is_drained:
                    raise asyncio.CancelledError
                begin = time.monotonic()
                try:
                    paid = await self.ledger.pay(key, topic, worst(), lambda: self._once(send))
                    self._pauses = 0
                    return paid
                except RejectedRequest as error:
                    self.circuit.note(str(error))
                    raise FailedAnswer(str(error)) from error
                except PassingError as error:
                    if error.is_rate_limit:
                        self._pause(error, begin)
                        continue
                    self.circuit.note(str(error))
                    unreadable += isinstance(error, UnreadableReply)
                    if attempt >= self.retries.attempts or unreadable == 2:
                        raise FailedAnswer(f"{self.model} failed {attempt} times, at last with: {error}") from error
                    wait = self.retries.wait_after(error, attempt)
                    self._log(error, attempt, wait)
                attempt += 1
                await asyncio.sleep(wait)

    async def _once(self, send: Callable[[], Awaitable[Reply]]) -> Reply:
        """Send a request, and note that it is on its way."""
        task = asyncio.current_task()
        self._on_wire.add(task)
        try:
            return await send()
        finally:
            self._on_wire.discard(task)

    def _pause(self, error: PassingError, begin: float) -> None:
        """Let all requests wait after a 429; those that were on their way together count once."""
        if begin >= self._paused_at:
            self._pauses += 1
            self._paused_at = time.monotonic()
        if self._pauses == self.retries.attempts:
            raise ProviderError(f"{self.model} is over its rate limit: {error}. {LATER}") from error
        wait = self.retries.wait_after(error, self._pauses)
        self._open_at = max(self._open_at, time.monotonic() + wait)
        self._log(error, self._pauses, wait)

    def _log(self, error: PassingError, attempt: int, wait: float) -> None:
        """Log one line a minute, because all requests in flight may fail together; a single failure is worth none."""
        is_due = attempt > 1 and time.monotonic() - self._logged_at >= LOG_EVERY
        if is_due:
            self._logged_at = time.monotonic()
        level = logging.INFO if is_due else logging.DEBUG
        logger.log(level, "%s: %s; attempt %d in %.1f s", self.model, error, attempt + 1, wait)

    def _forget(self, key: str, task: asyncio.Task) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: nobody may be waiting any more
