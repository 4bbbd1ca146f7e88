"""Send a question until its reply comes: below the ceilings, and again after errors that pass.

All that costs money at a provider goes through here, answers and images alike. What an error means:

- asked again now: a bad connection, a time-out, 5xx, each after a longer wait; after a 429 all requests wait.
- asked again by the next run: a question all of whose attempts failed, or that was rejected (400, 413, 422), and all
  questions that were left when the run stopped: on a wrong key, an empty account, a ceiling, or many rejections.
- final: a question that was rejected, if the provider then accepts another one.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from repair_hf.llm.errors import LATER, FailedRequest, PassingError, ProviderError, RejectedRequest, UnreadableBody
from repair_hf.llm.ledger import Call, Ledger, Reply, Topic
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.provider import KEEP
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import RunStopped

logger = logging.getLogger(__name__)

# How many attempts the circuit looks back over: at least so many, and so many per request at once. When a provider
# stumbles, everything in flight fails together, and the retries need time to find out whether it recovers.
WINDOW, WINDOW_PER_PLACE = 200, 16
ENOUGH = 50  # attempts before the circuit can stop a run
REJECTIONS, REJECTIONS_PER_PLACE = 20, 2  # in a row; more are no fault of single requests
EVERY = 60.0  # seconds between two log lines on errors that pass

Send = Callable[[], Awaitable[Reply]]


class Question(NamedTuple):
    """What is asked, and what it counts as.

    Args:
        key: Digest of what is asked.
        topic: Labels of the call in the ledger.
        send: Sends the request once. It must write to disk whatever the ledger's reply only names.
        worst: The most that the request may cost, in dollars; called when it is about to be sent.
        read: Reads a body that a killed process has received.
    """

    key: str
    topic: Topic
    send: Send
    worst: Callable[[], float]
    read: Callable[[bytes], Awaitable[Reply]] | None = None


@dataclass(frozen=True)
class Retries:
    """How long to keep retrying a failing provider.

    The waits double, unless the provider names a time.

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

    def wait_after(self, error: PassingError, attempt: int, model: str) -> float:
        """Return the seconds to wait before the next attempt: random ones (full jitter), but not after a 429.

        Raises:
            ProviderError: If the provider asks for too long a wait.
        """
        bound = min(self.longest_wait, self.first_wait * 2 ** (attempt - 1))
        if error.named_wait is None:
            return bound if error.is_rate_limit else random.uniform(0, bound)
        if error.named_wait > self.patience:
            raise ProviderError(f"{model} asks to wait {error.named_wait:.0f} s: {error}. {LATER}") from error
        return error.named_wait + random.uniform(0, min(bound, 1.0))


class Circuit:
    """Stops a run in which too many attempts fail.

    Args:
        max_error_rate: Highest tolerated share of failures; 1 tolerates all.
        window: How many of the latest attempts count.
    """

    def __init__(self, max_error_rate: float = 0.5, *, window: int = WINDOW) -> None:
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


def check_price(model: str, max_usd: float | None, *, has_price: bool) -> None:
    """Raise an error if there is a ceiling in dollars, and the model has no known price."""
    if not has_price and max_usd is not None:
        raise UserError(
            f"`max_usd` cannot be enforced: no list price is known for {model!r}. "
            "State it with --price or --editor-price, or use `max_calls`, which limits answers and hosted images."
        )


class Sender:
    """Asks one model, and writes what it pays into a ledger.

    Attributes:
        circuit: Learns here of failed attempts; the caller notes unusable answers.

    Raises:
        UserError: If there is a ceiling in dollars and the model has no known price.
    """

    def __init__(
        self,
        model: str,
        ledger: Ledger,
        options: RequestOptions,
        retries: Retries | None = None,
        *,
        has_price: bool = True,
    ) -> None:
        check_price(model, ledger.ceilings.max_usd, has_price=has_price)
        self.model, self.ledger, self._retries = model, ledger, retries or Retries()
        self._most = max(options.concurrency // processes().count, 1)  # requests at once
        self.circuit = Circuit(options.max_error_rate, window=max(WINDOW, WINDOW_PER_PLACE * self._most))
        self._tasks: dict[str, asyncio.Task[Call]] = {}
        self._on_wire: set[asyncio.Task | None] = set()
        self._places: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._rejected: dict[str, tuple[float, str, Topic]] = {}  # when a question was, why, and its topic
        self._accepted_at = 0.0  # when the last accepted request was sent
        self._pauses, self._paused_at, self._open_at = 0, 0.0, 0.0  # how many in a row; since and until when
        self._is_draining, self._logged_at = False, -EVERY
        self.drains = 0  # how often it was drained

    async def ask(self, question: Question) -> tuple[Call, bool]:
        """Return the call of a question that the ledger cannot answer, and whether this question paid for it.

        Equal questions that are asked at the same time share a call.

        Raises:
            FailedRequest: If all attempts failed, or it was rejected, and the run can go on without the reply.
            RunStopped: If it cannot go on.
        """
        task = self._tasks.get(question.key)
        if task is not None:
            return await asyncio.shield(task), False
        if self._is_draining:  # another attempt, after an unusable answer
            raise asyncio.CancelledError
        task = self._tasks[question.key] = asyncio.create_task(self._insist(question))
        task.add_done_callback(lambda task: self._forget(question.key, task))
        call = await asyncio.shield(task)  # it is paid for even if the caller is cancelled
        return call, call.is_new

    async def drain(self, seconds: float) -> None:
        """Send nothing new, and wait for the replies that are on their way; they are paid for already."""
        for task in set(self._tasks.values()) - self._on_wire:
            task.cancel()
        self._is_draining, self.drains = True, self.drains + 1
        try:
            if self._tasks:
                await asyncio.wait(self._tasks.values(), timeout=seconds)
        finally:
            self._is_draining = False

    async def _insist(self, question: Question) -> Call:
        """Attempt until a reply comes."""
        loop, attempt = asyncio.get_running_loop(), 1
        if self._places is None or self._places[0] is not loop:
            self._places = loop, asyncio.Semaphore(self._most)
        async with self._places[1]:  # a provider that is down gets few requests
            while True:
                while (wait := self._open_at - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                began = time.monotonic()
                try:
                    return await self._attempt(question, began)
                except RejectedRequest as error:
                    self._note_rejected(question, error)
                    raise FailedRequest(str(error)) from error
                except PassingError as error:
                    if error.is_rate_limit:
                        self._pause(error, began)
                        continue
                    wait = self._wait_after(error, attempt)
                attempt += 1
                await asyncio.sleep(wait)

    async def _attempt(self, question: Question, began: float) -> Call:
        if self._is_draining:
            raise asyncio.CancelledError
        call, at_most = await self.ledger.reserve(question.key, question.worst, question.topic)
        if call.state != "reserved":
            return call
        task = asyncio.current_task()
        self._on_wire.add(task)
        before = KEEP.set(partial(self.ledger.keep, question.key))
        try:
            if call.body is not None and question.read is not None:
                reply = await question.read(call.body)
            else:
                reply = await question.send()
                self._note_accepted(began)
        except BaseException as error:
            self.ledger.give_up(question.key, is_lost=getattr(error, "may_be_billed", True))
            if isinstance(error, PassingError) and not error.is_rate_limit:
                self.circuit.note(str(error))
            raise
        finally:
            KEEP.reset(before)
            self._on_wire.discard(task)
        return self.ledger.answer(question.key, reply, question.topic, at_most)

    def _note_accepted(self, began: float) -> None:
        """Note that a request was accepted. Those that were rejected before it was sent are at fault themselves."""
        self._accepted_at, self._pauses = max(self._accepted_at, began), 0
        for key, (moment, reason, topic) in list(self._rejected.items()):
            if moment < began:
                self.ledger.reject(key, reason, topic)
                del self._rejected[key]

    def _note_rejected(self, question: Question, error: RejectedRequest) -> None:
        """Stop the run if probably not only this request is at fault."""
        if not self._has_served:
            raise ProviderError(str(error)) from None
        self._rejected[question.key] = time.monotonic(), str(error), question.topic
        if (count := len(self._rejected)) > max(REJECTIONS, REJECTIONS_PER_PLACE * self._most):
            raise ProviderError(
                f"{self.model} rejected {count} requests in a row, at last with: {error}. {LATER}"
            ) from None

    def _pause(self, error: PassingError, began: float) -> None:
        """Let all requests wait after a 429; those that were in flight together count once."""
        if began > self._paused_at or not self._pauses:  # a coarse clock may show one moment for both
            self._pauses, self._paused_at = self._pauses + 1, time.monotonic()
        if self._pauses == self._retries.attempts:
            reason = f"{self.model} failed {self._pauses} times in a row, at last with: {error}"
            raise ProviderError(f"{reason}. {LATER}") from error
        wait = self._retries.wait_after(error, self._pauses, self.model)
        self._open_at = max(self._open_at, time.monotonic() + wait)
        self._log(error, self._pauses, wait)

    @property
    def _has_served(self) -> bool:
        return self._accepted_at > 0 or self.ledger.has_answers_of(self.model)

    def _wait_after(self, error: PassingError, attempt: int) -> float:
        """Return the seconds until the next attempt, or raise the error that ends the attempts."""
        if isinstance(error, UnreadableBody) and attempt > 1:
            reason = f"{error}. Two such bodies are kept in {self.ledger.path}; both may be billed. {LATER}"
            raise ProviderError(reason) from error
        if attempt == self._retries.attempts:
            reason = f"{self.model} failed {attempt} times in a row, at last with: {error}"
            if not (self._has_served or self.circuit.max_error_rate == 1):
                hint = "To leave out what fails, give --max-error-rate 1."
                raise ProviderError(f"{reason}. {LATER} {hint}") from error
            raise FailedRequest(reason) from error
        wait = self._retries.wait_after(error, attempt, self.model)
        self._log(error, attempt, wait)
        return wait

    def _log(self, error: PassingError, attempt: int, wait: float) -> None:
        """Log one line a minute, because all requests in flight may fail together; a single failure is worth none."""
        is_due = attempt > 1 and time.monotonic() - self._logged_at >= EVERY
        if is_due:
            self._logged_at = time.monotonic()
        level = logging.INFO if is_due else logging.DEBUG
        logger.log(level, "%s: %s; attempt %d in %.1f s", self.model, error, attempt + 1, wait)

    def _forget(self, key: str, task: asyncio.Task) -> None:
        del self._tasks[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: nobody may be waiting any more
