"""Send a question until its reply comes: within the limits and the ceilings, and again after errors that pass.

All that costs money at a provider goes through here, answers and images alike. What an error means:

- asked again now: a bad connection, a time-out, 429, 5xx. The waits grow; a 429 makes all requests wait. A rejected
  question (400, 413, 422) is asked once more, after another one was accepted.
- asked again by the next run: a question all of whose attempts failed, and all questions that were left when the run
  stopped: on a wrong key, an empty account, a ceiling, or many rejections in a row.
- final: a question that was rejected twice, while the provider accepted another one in between.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import inf
from typing import NamedTuple

from repair_hf.llm.errors import LATER, FailedRequest, PassingError, ProviderError, RejectedRequest, UnreadableBody
from repair_hf.llm.ledger import Call, Ledger, Reply, Topic
from repair_hf.llm.limits import Circuit, Limits, Slot
from repair_hf.llm.options import RequestOptions
from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

# How many attempts the circuit looks back over: at least so many, and so many per request at once. When a provider
# stumbles, everything in flight fails together, and the retries need time to find out whether it recovers.
WINDOW, WINDOW_PER_PLACE = 200, 16
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
        tokens: Expected tokens of prompt and answer; called if there is a limit of tokens.
        read: Reads a body that a killed process has received.
    """

    key: str
    topic: Topic
    send: Send
    worst: Callable[[], float]
    tokens: Callable[[], int] = lambda: 0
    read: Callable[[bytes], Awaitable[Reply]] | None = None


@dataclass(frozen=True)
class Retries:
    """How long to keep retrying a failing provider.

    The random waits grow exponentially (full jitter), unless the provider names a time.

    Args:
        attempts: Requests in all, the first one included.
        first_wait: Upper bound of the first wait, in seconds; it doubles with each attempt.
        longest_wait: Limit of that bound.
        patience: Longest wait, in seconds, that a provider may ask for; if it asks for more, the run stops.
    """

    attempts: int = 8
    first_wait: float = 0.5
    longest_wait: float = 30.0
    patience: float = 120.0

    def wait_after(self, error: PassingError, attempt: int, model: str) -> float:
        """Return the seconds to wait before the next attempt.

        Raises:
            ProviderError: If the provider asks for too long a wait.
        """
        jitter = random.uniform(0, min(self.longest_wait, self.first_wait * 2 ** (attempt - 1)))
        if error.named_wait is None:
            return jitter
        if error.named_wait > self.patience:
            raise ProviderError(f"{model} asks to wait {error.named_wait:.0f} s: {error}. {LATER}") from error
        return error.named_wait + min(jitter, 1.0)  # so that requests do not all return at once


class Sender:
    """Asks one model, and writes what it pays into a ledger. Several senders may share `limits`.

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
        limits: Limits | None = None,
        *,
        has_price: bool = True,
    ) -> None:
        if not has_price and ledger.ceilings.max_usd is not None:
            raise UserError(
                f"`max_usd` cannot be enforced: no list price is known for {model!r}. "
                "State it with --price or --editor-price, or use `max_calls`, which limits answers and hosted images."
            )
        self.model, self.ledger, self._retries = model, ledger, retries or Retries()
        self.limits = limits or Limits.of(options)
        window = max(WINDOW, WINDOW_PER_PLACE * self.limits.concurrency)
        self.circuit = Circuit(options.max_error_rate, window=window)
        self._tasks: dict[str, asyncio.Task[Call]] = {}
        self._on_wire: set[asyncio.Task | None] = set()
        self._in_a_row = 0  # rejections since the last accepted request
        self._set_aside: dict[asyncio.Future[None], float] = {}  # of rejected questions, and when each was rejected
        self._accepted_at = 0.0  # when the last accepted request was sent
        self._is_draining, self._logged_at = False, -EVERY

    async def ask(self, question: Question) -> tuple[Call, bool]:
        """Return the call of a question that the ledger cannot answer, and whether this question paid for it.

        Equal questions that are asked at the same time share a call. Its state is `rejected` if the provider does not
        accept the question.

        Raises:
            FailedRequest: If all attempts failed, or were rejected for now, and the run can go on without the reply.
            RunStopped: If it cannot go on.
        """
        task = self._tasks.get(question.key)
        if task is not None:
            return await asyncio.shield(task), False
        if self._is_draining:  # another attempt, after an unusable answer
            raise asyncio.CancelledError
        task = self._tasks[question.key] = asyncio.create_task(self._pay(question))
        task.add_done_callback(lambda task: self._forget(question.key, task))
        call = await asyncio.shield(task)  # it is paid for even if the caller is cancelled
        return call, call.is_new

    async def drain(self, seconds: float) -> None:
        """Send nothing new, and wait for the replies that are on their way; they are paid for already."""
        for task in set(self._tasks.values()) - self._on_wire:
            task.cancel()
        self._is_draining = True
        try:
            if self._tasks:
                await asyncio.wait(self._tasks.values(), timeout=seconds)
        finally:
            self._is_draining = False

    async def _pay(self, question: Question) -> Call:
        rejected_at: float | None = None
        while True:
            try:
                return await self._repeat(question)
            except RejectedRequest as error:
                self._note_rejected(error)
                if rejected_at is not None and self._accepted_at > rejected_at:
                    return self.ledger.reject(question.key, str(error), question.topic)
                if rejected_at is not None:
                    raise FailedRequest(str(error)) from error
            rejected_at = time.monotonic()
            await self._until_accepted(rejected_at)

    async def _repeat(self, question: Question) -> Call:
        """Attempt until a reply comes."""
        async with self.limits.places:  # a provider that is down gets few requests
            for number in count(1):
                try:
                    return await self._attempt(question)
                except PassingError as error:
                    wait = self._wait_after(error, number)
                await asyncio.sleep(wait)
        raise AssertionError("`_wait_after` ends the attempts")

    async def _attempt(self, question: Question) -> Call:
        if self._is_draining:
            raise asyncio.CancelledError
        try:
            async with self.limits.slot(question.tokens() if self.limits.has_tokens else 0) as slot:
                send = partial(self._on_the_wire, question.send, slot)
                return await self.ledger.pay(question.key, question.topic, question.worst, send, question.read)
        except PassingError as error:
            if not error.is_rate_limit:  # the limits handle these
                self.circuit.note(str(error))
            raise

    async def _on_the_wire(self, send: Send, slot: Slot) -> Reply:
        task, began = asyncio.current_task(), time.monotonic()
        self._on_wire.add(task)
        try:
            reply = await send()
        finally:
            self._on_wire.discard(task)
        self._accepted_at, self._in_a_row = max(self._accepted_at, began), 0
        self._ask_again(began)
        slot.tokens = (reply.prompt_tokens + reply.completion_tokens) or slot.tokens
        return reply

    def _note_rejected(self, error: RejectedRequest) -> None:
        """Stop the run if probably not only this request is at fault."""
        if not self._has_served:
            raise ProviderError(str(error)) from None
        self._in_a_row += 1
        if self._in_a_row > max(REJECTIONS, REJECTIONS_PER_PLACE * self.limits.concurrency):
            raise ProviderError(
                f"{self.model} rejected {self._in_a_row} requests in a row, at last with: {error}. {LATER}"
            ) from None

    async def _until_accepted(self, moment: float) -> None:
        """Wait until a request is accepted that was sent after this moment, or no other is left."""
        turn = asyncio.get_running_loop().create_future()
        self._set_aside[turn] = moment
        try:
            self._ask_again_if_alone()
            await turn
        finally:
            del self._set_aside[turn]

    def _ask_again(self, accepted_at: float) -> None:
        for turn, rejected_at in self._set_aside.items():
            if rejected_at < accepted_at and not turn.done():
                turn.set_result(None)

    def _ask_again_if_alone(self) -> None:
        if len(self._set_aside) == len(self._tasks):
            self._ask_again(inf)

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
            if error.is_rate_limit:
                raise ProviderError(f"{reason}. {LATER}") from error
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
        self._ask_again_if_alone()
        if not task.cancelled():
            task.exception()  # marks it as retrieved: nobody may be waiting any more
