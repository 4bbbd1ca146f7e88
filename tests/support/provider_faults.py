"""What an LLM provider may send, in the shape of OpenAI's protocol and of Gemini's; what we do, and what we count.

Each reply is made from the text of the right answer. `docs/reliability.md` shows the table. `then` is one of

- `used`: the answer is used;
- `retried`: the request is sent again after a wait, up to eight times; then its row is dropped;
- `all wait`: the same, and all requests wait; in the end the run stops;
- `once more`: the request is sent once more; then its row is dropped;
- `asked again`: the answer is unusable, and is asked again with the complaint (`--answer-attempts`);
- `refused`: the row is dropped;
- `dropped`: the row is dropped, and the next run asks again;
- `stop`: the run stops at once; the same command goes on later.

`bill` is `tokens` (by its usage), `worst` (the most that the request may cost) or `nothing`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from provider_server import Shape, Wire, error, said

BOTH: tuple[Shape, ...] = ("openai", "gemini")
QUOTA = "You exceeded your current quota, please check your plan and billing details."
FILTERED = "Your request was rejected as a result of our safety system."


class Row(NamedTuple):
    sent: str
    then: str
    bill: str
    wire: Callable[[Shape, str], Wire]
    shapes: tuple[Shape, ...] = BOTH


def _status(status: int, message: str, code: str | None = None, **headers: str) -> Callable[[Shape, str], Wire]:
    return lambda shape, text: Wire(status, error(shape, status, message, code), headers)


def _body(change: Callable[[str], Any], finish: str = "stop", **fields: Any) -> Callable[[Shape, str], Wire]:
    return lambda shape, text: Wire(body=said(shape, change(text), finish) | fields)


def _raw(change: Callable[[dict], str]) -> Callable[[Shape, str], Wire]:
    return lambda shape, text: Wire(body=change(said(shape, text)).encode())


def _ends(ending: str, delay: float = 0.0) -> Callable[[Shape, str], Wire]:
    return lambda shape, text: Wire(body=said(shape, text), ending=ending, delay=delay)


def _usage(**counts: Any) -> Callable[[Shape, str], Wire]:
    body = said("openai", None)["usage"] | counts
    return _body(str, usage=body)


def _wrong_key(shape: Shape, text: str) -> Wire:
    if shape == "openai":
        return _status(401, "Incorrect API key provided.", "invalid_api_key")(shape, text)
    return _status(400, "API key not valid. Please pass a valid API key.", "INVALID_ARGUMENT")(shape, text)


def _refusal(shape: Shape, text: str) -> Wire:
    if shape == "openai":
        return Wire(body=said(shape, None, refusal="I cannot help with that."))
    body = said(shape, None)
    body["candidates"][0]["finishReason"] = "PROHIBITED_CONTENT"
    return Wire(body=body)


def _prompt_filter(shape: Shape, text: str) -> Wire:
    if shape == "openai":
        return _status(400, FILTERED, "content_policy_violation")(shape, text)
    usage = {"promptTokenCount": 1000, "totalTokenCount": 1000}
    return Wire(body={"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": usage})


def _no_answers(shape: Shape, text: str) -> Wire:
    return Wire(body=said(shape, text) | {"choices" if shape == "openai" else "candidates": []})


def _lists(text: str) -> str:
    return json.dumps({key: [value] for key, value in json.loads(text).items()})


ROWS = [
    Row("429", "all wait", "nothing", _status(429, "Slow down.")),
    Row("429 with Retry-After", "all wait", "nothing", _status(429, "Slow down.", **{"Retry-After": "0.1"})),
    Row("500", "retried", "nothing", _status(500, "An internal error has occurred.")),
    Row("503", "retried", "nothing", _status(503, "The model is overloaded.")),
    Row("529", "retried", "nothing", _status(529, "Overloaded.")),
    Row("no answer within `--timeout`", "retried", "worst", _ends("whole", 60.0)),
    Row("an answer that is not whole within `--timeout`", "retried", "worst", _ends("cut", 60.0)),
    Row("an answer byte by byte, beyond `--timeout`", "retried", "worst", _ends("dripping", 0.1)),
    Row("a connection that is closed", "retried", "worst", _ends("silent")),
    Row("a connection that is reset in the body", "retried", "worst", _ends("reset")),
    Row("a connection that is closed in the body", "retried", "worst", _ends("cut")),
    Row("JSON that is cut off", "once more", "worst", _raw(lambda body: json.dumps(body)[:-20])),
    Row("a web page with status 200", "once more", "worst", _raw(lambda body: "<html>502 Bad Gateway</html>")),
    Row("an empty body", "once more", "worst", _raw(lambda body: "")),
    Row("an error with status 200", "once more", "worst", _status(200, "The upstream is busy.")),
    Row("no choices", "once more", "worst", _no_answers),
    Row("an empty text", "asked again", "tokens", _body(lambda text: "")),
    Row("no text", "asked again", "tokens", _body(lambda text: None)),
    Row("JSON in the text that is cut off", "asked again", "tokens", _body(lambda text: text[: len(text) // 2])),
    Row("an answer at the limit of its length", "asked again", "tokens", _body(lambda text: text[:9], "length")),
    Row("values of wrong types", "asked again", "tokens", _body(_lists)),
    Row("prose in place of JSON", "asked again", "tokens", _body(lambda text: "I have compared the two.")),
    Row("JSON in a fence", "used", "tokens", _body(lambda text: f"```json\n{text}\n```")),
    Row("prose around JSON, also with braces before it", "used", "tokens", _body(lambda text: f"{{a}} {text} b")),
    Row("no usage", "used", "worst", _body(str, usage=None), ("openai",)),
    Row("a negative count of tokens", "used", "worst", _usage(prompt_tokens=-5), ("openai",)),
    Row("a refusal", "refused", "tokens", _refusal),
    Row("an answer that a filter stopped", "refused", "tokens", _body(lambda text: None, "content_filter")),
    Row("a prompt that a filter stopped", "refused", "nothing", _prompt_filter, ("openai",)),
    Row("a prompt that a filter stopped, with usage", "refused", "tokens", _prompt_filter, ("gemini",)),
    Row("400, 422", "dropped", "nothing", _status(400, "Unable to process the image.")),
    Row("a wrong key", "stop", "nothing", _wrong_key),
    Row("402, or an empty account", "stop", "nothing", _status(402, "Insufficient balance.")),
    Row("429, and no quota left", "stop", "nothing", _status(429, QUOTA, "insufficient_quota"), ("openai",)),
    Row("403, 404", "stop", "nothing", _status(404, "No such model.")),
]  # fmt: skip


def as_markdown() -> str:
    """Return the table as the documentation shows it."""
    lines = ["| sent | what happens | counted |", "|---|---|---|"]
    bills = {"tokens": "its tokens", "worst": "the most it may cost", "nothing": "nothing"}
    lines += [f"| {row.sent} | {row.then} | {bills[row.bill]} |" for row in ROWS]
    return "\n".join(lines) + "\n"
