"""Faults of an LLM provider by name, in the shape of OpenAI's protocol and of Gemini's.

Each fault is made from the text of the right answer: what a client reads from the fault can be compared with it.
"""

import json
from collections.abc import Callable

from provider_server import Shape, Wire, error, said

Fault = Callable[[Shape, str], Wire]


def _failing(status: int, message: str, **headers: str) -> Fault:
    return lambda shape, text: Wire(status, error(shape, status, message), headers)


QUOTA = "You exceeded your current quota, please check your plan and billing details."


def _quota(shape: Shape, text: str) -> Wire:
    """No credit, or the free requests of the day are used up. Gemini says so in a detail, and still names a wait."""
    if shape == "openai":
        return Wire(429, error(shape, 429, QUOTA, "insufficient_quota"))
    return _gemini_quota("PerDay", "3s")


def _retry_delay(shape: Shape, text: str) -> Wire:
    """Too many requests a minute; Gemini names the wait in the body, not in a header."""
    if shape == "openai":
        return Wire(429, error(shape, 429, "Rate limit reached", "rate_limit_exceeded"), {"Retry-After": "0.3"})
    return _gemini_quota("PerMinute", "0.3s")


def _gemini_quota(period: str, delay: str) -> Wire:
    violation = {"quotaId": f"GenerateRequests{period}PerProjectPerModel-FreeTier"}
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
    ]
    return Wire(429, error("gemini", 429, QUOTA, "RESOURCE_EXHAUSTED", details))


def _wrong_key(shape: Shape, text: str) -> Wire:
    if shape == "openai":
        return Wire(401, error(shape, 401, "Incorrect API key provided.", "invalid_api_key"))
    return Wire(400, error(shape, 400, "API key not valid. Please pass a valid API key.", "INVALID_ARGUMENT"))


def _empty_choices(shape: Shape, text: str) -> Wire:
    return Wire(body=said(shape, text) | {"choices" if shape == "openai" else "candidates": []})


def _refusal(shape: Shape, text: str) -> Wire:
    """Gemini has no such field; what it will not say it does not say for a reason."""
    if shape == "openai":
        return Wire(body=said(shape, None, refusal="I cannot help with that."))
    body = said(shape, None, "content_filter")
    body["candidates"][0] |= {"finishReason": "PROHIBITED_CONTENT", "finishMessage": "I cannot help with that."}
    return Wire(body=body)


def _prompt_filter(shape: Shape, text: str) -> Wire:
    """The prompt itself was blocked."""
    if shape == "openai":
        return Wire(400, error(shape, 400, "The prompt triggered the content management policy.", "content_filter"))
    usage = {"promptTokenCount": 1000, "totalTokenCount": 1000}
    return Wire(body={"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": usage})


def _wrong_types(text: str) -> str:
    return json.dumps({key: [value] for key, value in json.loads(text).items()})


# What passes when the same is asked again.
PASSING: dict[str, Fault] = {
    "429": _failing(429, "Slow down."),
    "429 with Retry-After": _failing(429, "Slow down.", **{"Retry-After": "0.3"}),
    "429 with a wait in the body": _retry_delay,
    "500": _failing(500, "An internal error has occurred."),
    "503": _failing(503, "The model is overloaded."),
    "504": _failing(504, "Deadline expired."),
    "529": _failing(529, "Overloaded."),
    "time-out": lambda shape, text: Wire(body=said(shape, text), delay=60.0),
    "time-out mid-body": lambda shape, text: Wire(body=said(shape, text), ending="cut", delay=60.0),
    "connection closed": lambda shape, text: Wire(ending="silent"),
    "connection reset mid-body": lambda shape, text: Wire(body=said(shape, text), ending="reset"),
    "connection closed mid-body": lambda shape, text: Wire(body=said(shape, text), ending="cut"),
    "truncated body": lambda shape, text: Wire(body=json.dumps(said(shape, text)).encode()[:-20]),
    "web page": lambda shape, text: Wire(body=b"<html>502 Bad Gateway</html>"),
    "error with status 200": lambda shape, text: Wire(body=error("openai", 200, "The upstream is busy.")),
}
# Of those, the ones with a status, or a body, that shows that nothing was answered, so nothing is billed.
NOT_BILLED = (
    *("429", "429 with Retry-After", "429 with a wait in the body", "500", "503", "504", "529"),
    "error with status 200",
)
UNREADABLE = ("truncated body", "web page")  # they came whole, and may be billed: they are asked for once more only
# The answer is unusable; a second one may not be.
UNUSABLE: dict[str, Fault] = {
    "empty choices": _empty_choices,
    "empty content": lambda shape, text: Wire(body=said(shape, "")),
    "null content": lambda shape, text: Wire(body=said(shape, None)),
    "truncated JSON": lambda shape, text: Wire(body=said(shape, text[: len(text) // 2])),
    "cut off at the limit": lambda shape, text: Wire(body=said(shape, text[: len(text) // 2], "length")),
    "wrong types": lambda shape, text: Wire(body=said(shape, _wrong_types(text))),
    "prose instead of JSON": lambda shape, text: Wire(body=said(shape, "I have compared the two.")),
}
# Odd, but the answer is in it.
USABLE: dict[str, Fault] = {
    "JSON in a fence": lambda shape, text: Wire(body=said(shape, f"```json\n{text}\n```")),
    "prose around JSON": lambda shape, text: Wire(body=said(shape, f"I looked {{closely}}.\n{text}\nThat is all.")),
}
# The row's end.
REFUSED: dict[str, Fault] = {
    "refusal": _refusal,
    "content filter": lambda shape, text: Wire(body=said(shape, None, "content_filter")),
    "prompt filter": _prompt_filter,
}
# The run's end.
LASTING: dict[str, Fault] = {
    "401": _wrong_key,
    "402": _failing(402, "Insufficient balance."),
    "403": _failing(403, "Not in your country."),
    "404": _failing(404, "No such model."),
    "quota": _quota,
}
FAULTS = PASSING | UNUSABLE | USABLE | REFUSED | LASTING
