"""Retries: believe in a provider that fails, for a while.

In:  a coroutine function that sends a request once, for a text or for an image.
Out: its reply; or a `ProviderError` when patience ends, which is a `FailedRequest` where each attempt failed.

The waits grow exponentially with full jitter (each is drawn between zero and a bound that doubles), unless the provider names a time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from repair_hf.llm.failures import LATER, FailedRequest, PassingFailure, ProviderError

logger = logging.getLogger(__name__)

Reply = TypeVar("Reply")


@dataclass(frozen=True)
class Retries:
    """How long to believe in a provider that fails.

    Args:
        attempts: Requests in all, the first one included.
        first_wait: Bound, in seconds, of the first random wait; it doubles from one to the next.
        longest_wait: Where the doubling ends.
        patience: The longest wait, in seconds, that a provider may ask for; beyond it the run stops instead.
    """

    attempts: int = 8
    first_wait: float = 0.5
    longest_wait: float = 30.0
    patience: float = 120.0


async def insist(
    send: Callable[[], Awaitable[Reply]], retries: Retries, model: str, may_drop: Callable[[], bool] | None = None
) -> Reply:
    """Send until a reply comes.

    Args:
        send: Sends once.
        retries: How long to believe in the provider.
        model: What is asked; for the messages.
        may_drop: Tells, when patience ends, whether the run can do without this reply; None where it never can.

    Raises:
        FailedRequest: If none came in `retries.attempts` attempts, and it may be dropped.
        ProviderError: If none came and it may not, because too much is asked at once, or the provider asks for too long a wait.
    """
    attempt = 1
    while True:
        try:
            return await send()
        except PassingFailure as failure:
            if attempt == retries.attempts:
                reason = f"{model} failed {attempt} times in a row, at last with: {failure}"
                if failure.is_rate_limit or may_drop is None:
                    raise ProviderError(f"{reason}. {LATER}") from failure
                if not may_drop():
                    hint = "To leave out what fails, give --max-error-rate 1."
                    raise ProviderError(f"{reason}. {LATER} {hint}") from failure
                raise FailedRequest(reason) from failure
            if failure.named_wait is not None and failure.named_wait > retries.patience:
                raise ProviderError(
                    f"{model} asks to wait {failure.named_wait:.0f} s: {failure}. {LATER}"
                ) from failure
            wait = _wait(retries, attempt, failure.named_wait)
            level = logging.DEBUG if attempt == 1 else logging.INFO  # one miss is nothing; a second is worth a word
            logger.log(
                level, "%s: %s; attempt %d of %d in %.1f s", model, failure, attempt + 1, retries.attempts, wait
            )
        await asyncio.sleep(wait)
        attempt += 1


def _wait(retries: Retries, attempt: int, named: float | None) -> float:
    jitter = random.uniform(0, min(retries.longest_wait, retries.first_wait * 2 ** (attempt - 1)))
    return jitter if named is None else named + min(jitter, 1.0)  # so that not all requests come back at one instant
