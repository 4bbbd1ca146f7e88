"""Why a provider did not answer, and how long to try again.

LiteLLM's exceptions become exceptions of ours, in the provider's words and without secrets.

LiteLLM guesses some statuses: a broken connection gets 500, a missing key 500, a cut-off body 422 or (for an image)
200, and an error that comes with status 200 none. Where the status misleads, the message decides.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from repair_hf.llm.loading import load_litellm
from repair_hf.runtime.run_folder import RunStopped, without_secrets

logger = logging.getLogger(__name__)

LATER = "Every answer so far is kept; run the same command again later."
LONGEST_REASON = 300  # characters
EVERY = 60.0  # seconds between two lines on a model's failures

# LiteLLM also gives these statuses to a time-out, a broken connection and an unreadable body.
_GUESSED = (408, 422, 500)

# These come with status 429 too, but waiting does not help.
_NO_CREDIT = re.compile(r"insufficient_quota|billing_not_active|billing_hard_limit|PerDay")
_NO_CREDIT_400 = re.compile(r"\b(billing|credits?|balance|quota|payment)\b", re.IGNORECASE)
_BAD_KEY = re.compile(r"[A-Z]_API_KEY\b|character detected in headers")  # no key is set, or no header can carry it
_UNREADABLE = "Error converting to valid response"
_FILTERED = re.compile(r"\b(content_filter|content_policy_violation|moderation_blocked)\b")
_MODERATED = re.compile(r"\b(flagged|requires moderation)\b")  # OpenRouter
_RETRY_DELAY = re.compile(r'"retryDelay":\s*"([\d.]+)s"')  # Gemini sends no Retry-After header

_WRAPPING = re.compile(r"^((litellm\.)?\w*(Error|Exception|Timeout)( \w+Error)?( - |: ))+")
_CONTEXT_OBJECT = re.compile(r" ssl:<[^>]*>")


Result = TypeVar("Result")

_logged_at: dict[str, float] = {}  # model -> time of its last line


class ProviderError(RunStopped):
    """The provider does not answer (wrong key, no credit, no such model): the run stops and can be resumed later."""


class RejectedRequest(ProviderError):
    """The provider does not accept this request. If it has answered others, only this request is at fault."""


class FailedRequest(ProviderError):
    """Every attempt at this request failed, and the run can go on without its reply."""


class PassingFailure(Exception):
    """A request failed, but another attempt may succeed: a bad connection or body, a time-out, 429 or 5xx.

    Args:
        named_wait: Seconds that the provider asks to wait; None if it names none.
        is_rate_limit: Whether the rate limit was exceeded.
        may_be_billed: Whether the provider may have answered, and only the answer was lost.
    """

    def __init__(
        self,
        reason: str,
        named_wait: float | None = None,
        *,
        is_rate_limit: bool = False,
        may_be_billed: bool = False,
    ) -> None:
        super().__init__(reason)
        self.named_wait, self.is_rate_limit, self.may_be_billed = named_wait, is_rate_limit, may_be_billed


class Blocked(Exception):
    """The provider's filter rejected the content: only this row is dropped."""


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


async def insist(
    send: Callable[[], Awaitable[Result]], retries: Retries, model: str, may_drop: Callable[[], bool] | None = None
) -> Result:
    """Send a request until a reply comes.

    `may_drop` is asked after the last attempt whether the run can go on without this reply; None if it never can.

    Raises:
        FailedRequest: If all attempts failed and the request may be dropped.
        ProviderError: If all attempts failed and the run needs the reply, or the provider asks for too long a wait.
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
            _log_retry(model, failure, attempt, retries, wait)
        await asyncio.sleep(wait)
        attempt += 1


def _log_retry(model: str, failure: PassingFailure, attempt: int, retries: Retries, wait: float) -> None:
    """Log a retry: one line per model and minute, because all requests in flight may fail together."""
    now = time.monotonic()
    is_due = attempt > 1 and now - _logged_at.get(model, -EVERY) >= EVERY  # a single failure is not worth a line
    if is_due:
        _logged_at[model] = now
    level = logging.INFO if is_due else logging.DEBUG
    logger.log(level, "%s: %s; attempt %d of %d in %.1f s", model, failure, attempt + 1, retries.attempts, wait)


def _wait(retries: Retries, attempt: int, named: float | None) -> float:
    jitter = random.uniform(0, min(retries.longest_wait, retries.first_wait * 2 ** (attempt - 1)))
    return jitter if named is None else named + min(jitter, 1.0)  # so that requests do not all return at once


def as_failure(error: Any, model: str) -> PassingFailure | ProviderError | Blocked:
    """Turn an `openai.APIError`, the base class of LiteLLM's exceptions, into an exception of ours."""
    litellm = load_litellm()
    reason, everything = reason_of(error), f"{error} {vars(error).get('body')}"
    status = error.status_code
    if not isinstance(status, int) or status < 400:  # an error sent as a success, or a success that cannot be read
        status = 500
    filtered = {400: _FILTERED, 403: _MODERATED}.get(status)
    if isinstance(error, litellm.ContentPolicyViolationError) or (filtered and filtered.search(everything)):
        return Blocked(reason)
    if _BAD_KEY.search(reason) or status in (401, 403):
        what = "refuses access" if status == 403 else "does not accept the API key"
        return ProviderError(f"{model} {what}: {reason}")
    if status == 402 or _NO_CREDIT.search(everything) or (status == 400 and _NO_CREDIT_400.search(reason)):
        return ProviderError(f"{model} has no credit left, or its quota is used up: {reason}")
    if status in (408, 409, 429) or status >= 500 or _UNREADABLE in reason:
        may_be_billed = status in _GUESSED and _may_be_answered(error)
        return PassingFailure(reason, _named_wait(error), is_rate_limit=status == 429, may_be_billed=may_be_billed)
    kind = RejectedRequest if status in (400, 413, 422) else ProviderError
    return kind(f"{model} does not accept the request: {reason}")


def reason_of(error: Any) -> str:
    """Extract the provider's message from LiteLLM's wrapping, on one line."""
    text = _WRAPPING.sub("", str(error).strip())
    if text in ("", "Connection error."):
        text = f"{text or type(error).__name__} {_below(error)}".strip()
    try:
        text = json.JSONDecoder().raw_decode(text)[0]["error"]["message"]
    except (ValueError, TypeError, KeyError, RecursionError):  # not JSON: the text is the message
        text = next((line for line in text.splitlines() if line.strip()), text)  # a traceback may follow
    line = " ".join(without_secrets(str(text)).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."


def _below(error: BaseException) -> str:
    """Return the message of the network error below an exception."""
    import httpx

    said = (str(cause) for cause in _causes(error) if isinstance(cause, httpx.HTTPError | OSError | ValueError))
    return _CONTEXT_OBJECT.sub("", next(said, ""))


def _may_be_answered(error: BaseException) -> bool:
    """Whether the request was sent and no status came back, as after a time-out."""
    import httpx

    not_billed = httpx.HTTPStatusError | httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
    return not any(isinstance(cause, not_billed) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and its chain of causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _named_wait(error: Any) -> float | None:
    """Read the seconds to wait from the header Retry-After (a number or a date) or from Gemini's `retryDelay`."""
    headers = vars(error).get("litellm_response_headers") or {}  # missing if no response came
    value = headers.get("retry-after", "")
    if value.replace(".", "", 1).isdecimal():
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        delay = _RETRY_DELAY.search(str(error))
        return float(delay[1]) if delay else None
