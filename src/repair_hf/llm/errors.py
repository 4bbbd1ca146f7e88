"""Errors of providers: what is asked again now, what by the next run, and what is final.

LiteLLM's exceptions become exceptions of ours, in the provider's words and without keys.

LiteLLM guesses some statuses: a broken connection gets 500, a missing key 500, a cut-off body 422 or (for an image)
200, and an error that comes with status 200 none. Where the status misleads, the message decides.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

from repair_hf.llm.loading import load_litellm
from repair_hf.runtime.redaction import printable, without_secrets
from repair_hf.runtime.run_folder import RunStopped

LATER = "Every answer so far is kept; run the same command again later."
LONGEST_REASON, SHOWN = 300, 200  # characters

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


class ProviderError(RunStopped):
    """The provider does not answer (wrong key, no credit, no such model): the run stops and can be resumed later."""

    may_be_billed = False


class RejectedRequest(ProviderError):
    """The provider does not accept this request. If it goes on to answer others, only this request is at fault."""


class FailedRequest(ProviderError):
    """Every attempt at this request failed, and the run can go on without its reply; the next run asks again."""


class PassingError(Exception):
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


class UnreadableBody(PassingError):
    """A whole body came that nothing can read. It may be billed, so it is asked for once more only."""

    def __init__(self, model: str, body: Any) -> None:
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else json.dumps(body)
        start = printable(" ".join(without_secrets(text[:SHOWN]).split()))
        super().__init__(f"{model} sent a body that cannot be read: {start or 'it is empty'}", may_be_billed=True)


class ReportedError(Exception):
    """An error in a body or in a row of a batch, in the form that LiteLLM gives the error of a single request."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(json.dumps(body))
        self.status_code, self.body = status, body


class Blocked(Exception):
    """The provider's filter rejected the content: only this row is dropped."""


def as_error(error: Any, model: str) -> PassingError | ProviderError | Blocked:
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
        return PassingError(reason, _named_wait(error), is_rate_limit=status == 429, may_be_billed=may_be_billed)
    kind = RejectedRequest if status in (400, 413, 422) else ProviderError
    return kind(f"{model} does not accept the request: {reason}")


def reason_of(error: Any) -> str:
    """Extract the provider's message from LiteLLM's wrapping, on one line, without keys, fit for a terminal."""
    text = _WRAPPING.sub("", str(error).strip())
    if text in ("", "Connection error."):
        text = f"{text or type(error).__name__} {_below(error)}".strip()
    try:
        text = json.JSONDecoder().raw_decode(text)[0]["error"]["message"]
    except (ValueError, TypeError, KeyError, RecursionError):  # not JSON: the text is the message
        text = next((line for line in text.splitlines() if line.strip()), text)  # a traceback may follow
    line = printable(" ".join(without_secrets(str(text)).split()))
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
