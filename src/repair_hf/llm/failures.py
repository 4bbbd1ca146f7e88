"""Failures: what it means that a provider did not answer.

In:  the exception that LiteLLM raised, for a chat request or for an edited image.
Out: the same as an exception of ours, in the provider's words and without secrets:
     - `PassingFailure`: another attempt may succeed (no connection, a broken one, time-out, 429, 5xx, a body that cannot be read);
     - `ProviderError`: none will (a wrong key, no credit, no such model); the run stops;
     - `RejectedRequest`: this very request is not accepted, though others may be;
     - `FailedRequest`: every attempt at this very request failed, though others are answered;
     - `Blocked`: the provider's filter refused the content.

LiteLLM's status is a guess in places: it gives a broken connection 500, a missing key 500, a cut-off body 422 or, of an image, 200, and
an error that comes with status 200 none at all. What it says is read where the status misleads.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

from repair_hf.llm.loading import load_litellm
from repair_hf.runtime.run_folder import RunStopped, without_secrets

LATER = "Every answer so far is kept; run the same command again later."
LONGEST_REASON = 300  # characters

# Statuses that LiteLLM gives to what comes without one, too: a time-out, a broken connection, a body that cannot be read.
_GUESSED = (408, 422, 500)

# A 429 too, but no wait that a run can sit out brings the credit back.
_NO_CREDIT = re.compile(r"insufficient_quota|billing_not_active|billing_hard_limit|PerDay")
_NO_CREDIT_400 = re.compile(r"\b(billing|credits?|balance|quota|payment)\b", re.IGNORECASE)
_BAD_KEY = re.compile(r"[A-Z]_API_KEY\b|character detected in headers")  # none set, or one that no header can carry
_UNREADABLE = "Error converting to valid response"
_FILTERED = re.compile(r"\b(content_filter|content_policy_violation|moderation_blocked)\b")
_RETRY_DELAY = re.compile(r'"retryDelay":\s*"([\d.]+)s"')  # Gemini has no header for it

_WRAPPING = re.compile(r"^((litellm\.)?\w*(Error|Exception|Timeout)( \w+Error)?( - |: ))+")
_CONTEXT_OBJECT = re.compile(r" ssl:<[^>]*>")


class ProviderError(RunStopped):
    """The provider does not serve; the run stops, and the same command goes on when it serves again."""


class RejectedRequest(ProviderError):
    """The provider does not accept this very request. Where it has answered others, the fault is the request's alone."""


class FailedRequest(ProviderError):
    """Every attempt at this very request failed, and the run can do without its reply."""


class PassingFailure(Exception):
    """A request failed in a way that may pass.

    Args:
        reason: In the provider's words.
        named_wait: Seconds that the provider asks to wait, if it does.
        is_rate_limit: Whether too much was asked at once.
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
    """The provider's filter refused the content; a fault of one row."""


def as_failure(error: Any, model: str) -> PassingFailure | ProviderError | Blocked:
    """What LiteLLM's exception means.

    Args:
        error: An `openai.APIError`, from which all of LiteLLM's derive.
        model: Who was asked.
    """
    litellm = load_litellm()
    reason, everything = reason_of(error), f"{error} {vars(error).get('body')}"
    status = error.status_code
    # an error that came as a success, or a success that cannot be read
    if not isinstance(status, int) or status < 400:
        status = 500
    if isinstance(error, litellm.ContentPolicyViolationError) or (status == 400 and _FILTERED.search(everything)):
        return Blocked(reason)
    if _BAD_KEY.search(reason) or status in (401, 403):
        return ProviderError(f"{model} lets nobody in with this key: {reason}")
    if status == 402 or _NO_CREDIT.search(everything) or (status == 400 and _NO_CREDIT_400.search(reason)):
        return ProviderError(f"{model} wants to be paid first, or its quota is used up: {reason}")
    if status in (408, 409, 429) or status >= 500 or _UNREADABLE in reason:
        may_be_billed = status in _GUESSED and _may_be_answered(error)
        return PassingFailure(reason, _named_wait(error), is_rate_limit=status == 429, may_be_billed=may_be_billed)
    kind = RejectedRequest if status in (400, 413, 422) else ProviderError
    return kind(f"{model} does not accept the request: {reason}")


def reason_of(error: Any) -> str:
    """What the provider says, on one line, out of what LiteLLM wraps around it."""
    text = _WRAPPING.sub("", str(error).strip())
    if text in ("", "Connection error."):
        text = f"{text or type(error).__name__} {_below(error)}".strip()
    try:
        text = json.JSONDecoder().raw_decode(text)[0]["error"]["message"]
    except (ValueError, TypeError, KeyError):  # the message stands there as it is
        text = next((line for line in text.splitlines() if line.strip()), text)  # a traceback may follow
    line = " ".join(without_secrets(str(text)).split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."


def _below(error: BaseException) -> str:
    """What the network said."""
    import httpx

    said = (str(cause) for cause in _causes(error) if isinstance(cause, httpx.HTTPError | OSError | ValueError))
    return _CONTEXT_OBJECT.sub("", next(said, ""))


def _may_be_answered(error: BaseException) -> bool:
    """Whether the request went out, and no status came back that says that it failed: so it is after a time-out, for one."""
    import httpx

    told = httpx.HTTPStatusError | httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
    return not any(isinstance(cause, told) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what lies below it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _named_wait(error: Any) -> float | None:
    """Seconds by the header Retry-After, which holds a number or a date, or by Gemini's `retryDelay`."""
    headers = vars(error).get("litellm_response_headers") or {}  # absent where no response came
    value = headers.get("retry-after", "")
    if value.replace(".", "", 1).isdecimal():
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        delay = _RETRY_DELAY.search(str(error))
        return float(delay[1]) if delay else None
