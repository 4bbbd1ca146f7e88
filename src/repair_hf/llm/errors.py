"""Errors of providers: what is asked again now (wait), what costs one row (drop), and what ends the run (stop).

The status and the provider's code decide, never the words of a message: it may quote the request. Only sentences that
begin a message and that no code stands for are read (`_NO_CREDIT_SAID`).

LiteLLM guesses some statuses: a broken connection gets 500, a missing key 500, a cut-off body 422.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from repair_hf.llm.loading import load_litellm
from repair_hf.llm.reader import parse_body
from repair_hf.runtime.redaction import printable, without_secrets
from repair_hf.runtime.run_folder import RunStopped

LATER = "Every answer so far is kept; run the same command again later."
KEPT = "Every answer so far is kept."
LONGEST_REASON, SHOWN = 500, 200  # characters

# LiteLLM also gives these statuses to a time-out, a broken connection and an unreadable body.
_GUESSED = (408, 422, 500)

_NO_CREDIT = {
    *("insufficient_quota", "billing_not_active", "billing_hard_limit_reached", "billing_error"),
    *("insufficient_credits", "insufficient_balance", "payment_required", "quota_exceeded"),
}
_FILTERED = {"content_filter", "content_policy_violation", "moderation_blocked", "ResponsibleAIPolicyViolation"}
_NO_CREDIT_SAID = re.compile(r"(Your credit balance is too low|Billing hard limit|Insufficient balance)")
# Of a 429, which waiting does not help; such messages quote no request.
_SPENT = re.compile(r"(prepa|credit)\w* .*(depleted|exhausted)|spending (cap|limit)", re.IGNORECASE)
_BAD_KEY = re.compile(r"[A-Z]_API_KEY\b|character detected in headers")  # no key is set, or no header can carry it
_UNREADABLE = "Error converting to valid response"

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
        self.is_server_fault = False  # a response with a status of 500 or more


class UnreadableBody(PassingError):
    """A whole body came that nothing can read. It may be billed, so it is asked for once more only."""

    def __init__(self, model: str, body: Any) -> None:
        text = body.decode("utf-8", "replace") if isinstance(body, bytes) else json.dumps(body)
        start = printable(" ".join(without_secrets(text[:SHOWN]).split()))
        super().__init__(f"{model} sent a body that cannot be read: {start or 'it is empty'}", may_be_billed=True)


@dataclass
class Exchange:
    """The newest response to a request: its status (0 if none came whole), headers and body."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def is_answer(self) -> bool:
        """Whether a whole body came with a status of success."""
        return 200 <= self.status < 300


class ReportedError(Exception):
    """An error in a body or in a row of a batch, in the form that LiteLLM gives the error of a single request."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(json.dumps(body))
        self.status_code, self.body = status, body


class Blocked(Exception):
    """The provider's filter rejected the content: only this row is dropped."""


def as_error(error: Any, model: str, exchange: Exchange | None = None) -> PassingError | ProviderError | Blocked:
    """Turn an `openai.APIError`, the base class of LiteLLM's exceptions, into an exception of ours.

    `exchange` is the response below it, if there is one.
    """
    litellm = load_litellm()
    body = (exchange and parse_body(exchange.body)) or vars(error).get("body") or json_in(str(error))
    codes, quotas, message = _reported(body)
    reason = _one_line(message) if message else reason_of(error)
    status = error.status_code
    if not isinstance(status, int) or status < 400:  # an error sent as a success, or a success that cannot be read
        status = 500
    # LiteLLM knows some blocks without a code by their words.
    is_block = bool(codes & _FILTERED) or isinstance(error, litellm.ContentPolicyViolationError)
    if (status == 400 and is_block) or (status == 403 and "moderated" in codes):
        return Blocked(reason)
    has_no_response = exchange is not None and not exchange.status
    if status in (401, 403) or (status != 429 and has_no_response and _BAD_KEY.search(reason)):
        what = "refuses access" if status == 403 else "does not accept the API key"
        return ProviderError(f"{model} {what}: {reason}. {KEPT}")
    is_spent = bool(codes & _NO_CREDIT) or (
        status == 429 and not codes & _LIMITS and _SPENT.search(reason) is not None
    )
    if status == 402 or quotas or is_spent or (status == 400 and _NO_CREDIT_SAID.match(reason)):
        spent = f" ({', '.join(sorted(quotas))})" if quotas else ""
        return ProviderError(f"{model} has no credit left, or its quota is used up{spent}: {reason}. {KEPT}")
    if status in (408, 409, 429) or status >= 500 or _UNREADABLE in reason:
        may_be_billed = status in _GUESSED and not isinstance(error, ReportedError) and may_be_answered(error)
        wait = _named_wait(error, body)
        passing = PassingError(reason, wait, is_rate_limit=status == 429, may_be_billed=may_be_billed)
        passing.is_server_fault = status >= 500 and not has_no_response
        return passing
    if status in (400, 413, 422):
        return RejectedRequest(f"{model} does not accept the request: {reason}")
    return ProviderError(f"{model} does not accept the request: {reason}. {KEPT}")


_LIMITS = {"rate_limit_exceeded", "rate_limit_error"}


def _reported(body: Any) -> tuple[set[str], set[str], str]:
    """Return the codes in the body of an error, the daily quotas it names, and its message."""
    if isinstance(body, list):  # Gemini, for a stream
        body = body[0] if body else None
    if not isinstance(body, dict):
        return set(), set(), ""
    error = body.get("error") if body.get("error") is not None else body
    if not isinstance(error, dict):
        return set(), set(), _said(error)
    metadata = error["metadata"] if isinstance(error.get("metadata"), dict) else {}
    details = [each for each in error.get("details") or () if isinstance(each, dict)]
    violations = [each for detail in details for each in detail.get("violations") or () if isinstance(each, dict)]
    inner = error["innererror"] if isinstance(error.get("innererror"), dict) else {}
    named = [error.get(name) for name in ("code", "type", "status")] + [inner.get("code")]
    codes = {name for name in [*named, *(detail.get("reason") for detail in details)] if isinstance(name, str)}
    if metadata.get("reasons"):  # OpenRouter's moderation
        codes.add("moderated")
    quotas = {name for each in violations if isinstance(name := each.get("quotaId"), str) and "PerDay" in name}
    message = _said(error.get("message")) or _said(body.get("detail"))
    upstream = _said(metadata.get("raw"))
    return codes, quotas, f"{message}: {upstream}" if message and upstream else message or upstream


def message_in(body: Any) -> str:
    """Return the message in the body of an error."""
    return _reported(body)[2]


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value) if value else ""


def json_in(text: str) -> Any:
    """Return the JSON object that a message of LiteLLM's quotes."""
    try:
        return json.JSONDecoder().raw_decode(text, text.index("{"))[0]
    except (ValueError, RecursionError):
        return None


def reason_of(error: Any) -> str:
    """Extract the message from LiteLLM's wrapping, on one line, without keys, fit for a terminal."""
    text = _WRAPPING.sub("", str(error).strip())
    if text in ("", "Connection error."):
        text = f"{text or type(error).__name__} {_below(error)}".strip()
    return _one_line(next((line for line in text.splitlines() if line.strip()), text))  # a traceback may follow


def _one_line(text: str) -> str:
    line = printable(" ".join(without_secrets(text).split()))
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."


def _below(error: BaseException) -> str:
    """Return the message of the network error below an exception."""
    import httpx

    said = (str(cause) for cause in _causes(error) if isinstance(cause, httpx.HTTPError | OSError | ValueError))
    return _CONTEXT_OBJECT.sub("", next(said, ""))


def may_be_answered(error: BaseException) -> bool:
    """Whether the request was sent and no status came back, as after a time-out."""
    import httpx

    not_billed = httpx.HTTPStatusError | httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
    return not any(isinstance(cause, not_billed) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and its chain of causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _named_wait(error: Any, body: Any) -> float | None:
    """Read the seconds to wait from the header Retry-After (a number or a date) or from Gemini's `retryDelay`."""
    # Missing if no response came. LiteLLM names the attribute nowhere; seen with litellm 1.106.
    headers = vars(error).get("litellm_response_headers") or {}
    value = headers.get("retry-after", "")
    if value.replace(".", "", 1).isdecimal():
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        delay = _RETRY_DELAY.search(json.dumps(body) if body else str(error))
        return float(delay[1]) if delay else None


_RETRY_DELAY = re.compile(r'"retryDelay":\s*"([\d.]+)s"')  # Gemini sends no Retry-After header
