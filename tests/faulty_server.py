"""A provider on loopback that fails in every way there is: in the shape of OpenAI's chat protocol and in that of Gemini's.

In:  a function from a `Question` to what is said (a text) or done (a `Wire`).
Out: `POST /v1/chat/completions` and `POST /v1beta/models/NAME:generateContent` on 127.0.0.1.

`FAULTS` holds the faults by name. Each is made for a shape and from the text that would have been right, so that what a client makes
of the fault can be told from what it would have made of the answer.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, NamedTuple

Shape = Literal["openai", "gemini"]
MODELS: dict[Shape, str] = {"openai": "openai/some-model", "gemini": "gemini/gemini-2.5-flash"}
KEYS: dict[Shape, str] = {"openai": "OPENAI_API_KEY", "gemini": "GEMINI_API_KEY"}
GEMINI_FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}


class Question(NamedTuple):
    """A request, whatever its shape was; `messages` in OpenAI's, `headers` by lower-case name."""

    shape: Shape
    messages: list[dict]
    seed: int
    body: dict
    headers: dict[str, str]


@dataclass(frozen=True)
class Wire:
    """What goes over the wire.

    Args:
        status: Of the response.
        body: What it holds.
        headers: Beside its type and length.
        ending: `whole`; `reset` and `cut` after half of the body, by a reset or by an orderly end; `silent`: no response at all.
        delay: Seconds before anything is sent.
    """

    status: int = 200
    body: dict | bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    ending: Literal["whole", "reset", "cut", "silent"] = "whole"
    delay: float = 0.0


Answer = Callable[[Question], "str | Wire"]


def said(shape: Shape, text: str | None, finish: str = "stop", *, refusal: str | None = None, times: int = 1) -> dict:
    """The body of an answer; 1000 tokens in, 100 out."""
    if shape == "openai":
        message = {"role": "assistant", "content": text} | ({"refusal": refusal} if refusal else {})
        choices = [{"index": k, "message": message, "finish_reason": finish} for k in range(times)]
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
    candidate = {"finishReason": GEMINI_FINISH[finish], "index": 0}
    if text is not None:
        candidate["content"] = {"role": "model", "parts": [{"text": text}]}
    usage = {"promptTokenCount": 1000, "candidatesTokenCount": 100, "totalTokenCount": 1100}
    return {"candidates": [candidate] * times, "usageMetadata": usage, "modelVersion": "gemini-2.5-flash"}


def error(shape: Shape, status: int, message: str, code: str | None = None, details: list[dict] | None = None) -> dict:
    """The body of an error; `code` is OpenAI's code or Gemini's status."""
    if shape == "openai":
        return {"error": {"message": message, "type": "invalid_request_error", "code": code}}
    return {"error": {"code": status, "message": message, "status": code or "UNKNOWN", "details": details or []}}


def _failing(status: int, message: str, **headers: str) -> Callable[[Shape, str], Wire]:
    return lambda shape, text: Wire(status, error(shape, status, message), headers)


def _quota(shape: Shape, text: str) -> Wire:
    """No credit, or the day's free requests: no wait helps. Gemini says so in a detail only, and names a wait all the same."""
    message = "You exceeded your current quota, please check your plan and billing details."
    if shape == "openai":
        return Wire(429, error(shape, 429, message, "insufficient_quota"))
    return Wire(429, error(shape, 429, message, "RESOURCE_EXHAUSTED", _quota_details("PerDay", "3s")))


def _retry_delay(shape: Shape, text: str) -> Wire:
    """Too much a minute; the wait stands in Gemini's body, in no header."""
    message = "You exceeded your current quota, please check your plan and billing details."
    if shape == "openai":
        return Wire(429, error(shape, 429, "Rate limit reached", "rate_limit_exceeded"), {"Retry-After": "0.3"})
    return Wire(429, error(shape, 429, message, "RESOURCE_EXHAUSTED", _quota_details("PerMinute", "0.3s")))


def _quota_details(period: str, delay: str) -> list[dict]:
    violation = {"quotaId": f"GenerateRequests{period}PerProjectPerModel-FreeTier"}
    return [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
    ]


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
PASSING: dict[str, Callable[[Shape, str], Wire]] = {
    "429": _failing(429, "Slow down."),
    "429 with Retry-After": _failing(429, "Slow down.", **{"Retry-After": "0.3"}),
    "429 with a wait in the body": _retry_delay,
    "500": _failing(500, "An internal error has occurred."),
    "503": _failing(503, "The model is overloaded."),
    "504": _failing(504, "Deadline expired."),
    "529": _failing(529, "Overloaded."),
    "time-out": lambda shape, text: Wire(body=said(shape, text), delay=2.0),
    "time-out mid-body": lambda shape, text: Wire(body=said(shape, text), ending="cut", delay=2.0),
    "connection closed": lambda shape, text: Wire(ending="silent"),
    "connection reset mid-body": lambda shape, text: Wire(body=said(shape, text), ending="reset"),
    "connection closed mid-body": lambda shape, text: Wire(body=said(shape, text), ending="cut"),
    "truncated body": lambda shape, text: Wire(body=json.dumps(said(shape, text)).encode()[:-20]),
    "web page": lambda shape, text: Wire(body=b"<html>502 Bad Gateway</html>"),
    "error with status 200": lambda shape, text: Wire(body=error("openai", 200, "The upstream is busy.")),
}
# Of those, the ones that came with a status which says that nothing was answered: nobody bills them.
NOT_BILLED = ("429", "429 with Retry-After", "429 with a wait in the body", "500", "503", "504", "529")
# What the model said is of no use; asked once more, it may be.
UNUSABLE: dict[str, Callable[[Shape, str], Wire]] = {
    "empty choices": _empty_choices,
    "empty content": lambda shape, text: Wire(body=said(shape, "")),
    "null content": lambda shape, text: Wire(body=said(shape, None)),
    "truncated JSON": lambda shape, text: Wire(body=said(shape, text[: len(text) // 2])),
    "cut off at the limit": lambda shape, text: Wire(body=said(shape, text[: len(text) // 2], "length")),
    "wrong types": lambda shape, text: Wire(body=said(shape, _wrong_types(text))),
    "prose instead of JSON": lambda shape, text: Wire(body=said(shape, "I have compared the two.")),
}
# Odd, but the answer is in it.
USABLE: dict[str, Callable[[Shape, str], Wire]] = {
    "JSON in a fence": lambda shape, text: Wire(body=said(shape, f"```json\n{text}\n```")),
    "prose around JSON": lambda shape, text: Wire(body=said(shape, f"I looked {{closely}}.\n{text}\nThat is all.")),
}
# The row's end.
REFUSED: dict[str, Callable[[Shape, str], Wire]] = {
    "refusal": _refusal,
    "content filter": lambda shape, text: Wire(body=said(shape, None, "content_filter")),
    "prompt filter": _prompt_filter,
}
# The run's end.
LASTING: dict[str, Callable[[Shape, str], Wire]] = {
    "401": _wrong_key,
    "402": _failing(402, "Insufficient balance."),
    "403": _failing(403, "Not in your country."),
    "404": _failing(404, "No such model."),
    "quota": _quota,
}
FAULTS = PASSING | UNUSABLE | USABLE | REFUSED | LASTING


class FaultyServer:
    """Serves in the background while it is entered.

    Args:
        answer: Gets each request, in a thread of its connection; may be replaced.
        idle: Seconds after which a connection that nobody uses is closed; None for never.

    Attributes:
        fetched: Paths that were asked for by GET, for which there is no reason.
        hangups: Released once for each connection that was closed.
    """

    def __init__(self, answer: Answer, *, idle: float | None = None) -> None:
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.front, self._http.idle = self, idle
        self.answer, self.fetched, self.hangups = answer, [], threading.Semaphore(0)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def base_url(self, shape: Shape = "openai") -> str:
        """What to give a client as the endpoint."""
        return f"http://127.0.0.1:{self._http.server_port}/{'v1' if shape == 'openai' else 'v1beta'}"

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class Script:
    """An answer function that gives its answers in turn, the last one for ever, and keeps what it was asked."""

    def __init__(self, *answers: str | Wire) -> None:
        self.answers, self.questions = list(answers), []

    def __call__(self, question: Question) -> str | Wire:
        self.questions.append(question)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    front: FaultyServer
    idle: float | None

    def shutdown_request(self, request) -> None:
        super().shutdown_request(request)
        self.front.hangups.release()

    def handle_error(self, request, client_address) -> None:
        """Clients go away, and connections are broken here on purpose."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        self.timeout = self.server.idle
        super().setup()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = _question(self.path, body, {name.lower(): value for name, value in self.headers.items()})
        answer = self.server.front.answer(question)
        self._send(answer if isinstance(answer, Wire) else Wire(body=said(question.shape, answer)))

    def do_GET(self) -> None:
        self.server.front.fetched.append(self.path)
        self._send(Wire(404))

    def _send(self, wire: Wire) -> None:
        body = wire.body if isinstance(wire.body, bytes) else json.dumps(wire.body).encode()
        time.sleep(wire.delay)
        self.close_connection = wire.ending != "whole"
        if wire.ending == "silent":
            return
        self.send_response(wire.status)
        for name, value in {"Content-Type": "application/json", **wire.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if wire.ending == "whole" else body[: len(body) // 2])
        if wire.ending == "reset":  # closing throws away what was not received, and says so
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            time.sleep(0.02)
            self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def _question(path: str, body: dict, headers: dict[str, str]) -> Question:
    if path == "/v1/chat/completions":
        return Question("openai", body["messages"], body.get("seed", 0), body, headers)
    assert path.startswith("/v1beta/models/") and path.endswith(":generateContent"), path
    messages = [_message({"role": "system"} | body["system_instruction"])] if "system_instruction" in body else []
    messages += [_message(content) for content in body["contents"]]
    return Question("gemini", messages, body["generationConfig"].get("seed", 0), body, headers)


def _message(content: dict) -> dict:
    """A message of Gemini's as one of OpenAI's."""
    role = {"model": "assistant"}.get(content["role"], content["role"])
    parts = [_part(part) for part in content["parts"]]
    return {"role": role, "content": parts if role == "user" else parts[0]["text"]}


def _part(part: dict) -> dict:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    data = part["inline_data"]
    return {"type": "image_url", "image_url": {"url": f"data:{data['mime_type']};base64,{data['data']}"}}
