"""A provider of LLMs and image editors on loopback, in the shape of OpenAI's protocol and in that of Gemini's.

It answers, edits images, takes in batches, and fails in every way that `provider_faults` holds.
"""

import base64
import io
import json
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from batch_server import BatchServer
from chat_server import ENDPOINT, Response
from chat_server import Handler as ChatHandler
from PIL import Image

Shape = Literal["openai", "gemini"]
MODELS: dict[Shape, str] = {"openai": "openai/some-model", "gemini": "gemini/gemini-2.5-flash"}
KEY = "planted-key-0123456789"
KEYS: dict[Shape, str] = {"openai": "OPENAI_API_KEY", "gemini": "GEMINI_API_KEY"}
GEMINI_FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}


@dataclass(frozen=True)
class Question:
    """A request, whatever its shape; `headers` by lower-case name."""

    path: str
    headers: dict[str, str]
    data: bytes

    @property
    def shape(self) -> Shape:
        return "openai" if self.path.startswith("/v1/") else "gemini"

    @cached_property
    def body(self) -> dict:
        return json.loads(self.data)

    @property
    def messages(self) -> list[dict]:
        """The messages, in OpenAI's shape."""
        if self.shape == "openai":
            return self.body["messages"]
        system = [{"role": "system"} | self.body["system_instruction"]] if "system_instruction" in self.body else []
        return [_message(content) for content in [*system, *self.body["contents"]]]

    @property
    def seed(self) -> int:
        return (self.body if self.shape == "openai" else self.body["generationConfig"]).get("seed", 0)


@dataclass(frozen=True)
class Wire(Response):
    """What goes over the wire.

    Args:
        ending: `whole`; `reset` or `cut`: half of the body, then a reset or an orderly end; `silent`: no response;
            `dripping`: byte by byte.
        delay: Seconds before anything is sent, before the end of what is `cut`, or before each byte; less if the
            client hangs up.
    """

    ending: Literal["whole", "reset", "cut", "silent", "dripping"] = "whole"
    delay: float = 0.0


Answer = Callable[[Question], "str | list[str] | Wire"]


def said(
    shape: Shape, text: str | None | list[str | None], finish: str = "stop", *, refusal: str | None = None
) -> dict:
    """Return the body of an answer, or of several choices; 1000 tokens in, 100 out."""
    texts = text if isinstance(text, list) else [text]
    if shape == "openai":
        more = {"refusal": refusal} if refusal else {}
        messages = [{"role": "assistant", "content": text} | more for text in texts]
        choices = [{"index": k, "message": message, "finish_reason": finish} for k, message in enumerate(messages)]
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
    candidates = [
        {"finishReason": GEMINI_FINISH[finish], "index": 0}
        | ({} if text is None else {"content": {"role": "model", "parts": [{"text": text}]}})
        for text in texts
    ]
    usage = {"promptTokenCount": 1000, "candidatesTokenCount": 100, "totalTokenCount": 1100}
    return {"candidates": candidates, "usageMetadata": usage, "modelVersion": "gemini-2.5-flash"}


def error(shape: Shape, status: int, message: str, code: str | None = None, details: list[dict] | None = None) -> dict:
    """Return the body of an error; `code` is OpenAI's code or Gemini's status."""
    if shape == "openai":
        return {"error": {"message": message, "type": "invalid_request_error", "code": code}}
    return {"error": {"code": status, "message": message, "status": code or "UNKNOWN", "details": details or []}}


def edited(shape: Shape, image: bytes | None) -> dict:
    """Return the body of an answer that holds an image, or of one that refuses to make it."""
    data = base64.b64encode(image or b"").decode()
    if shape == "openai":
        details = {"image_tokens": 290, "text_tokens": 10}
        usage = {"input_tokens": 300, "output_tokens": 272, "total_tokens": 572, "input_tokens_details": details}
        return {"created": 1, "data": [{"b64_json": data}] if image else [], "usage": usage}
    if image is None:
        return {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 270}}
    details = [{"modality": "IMAGE", "tokenCount": 1290}]
    usage = {"promptTokenCount": 270, "candidatesTokenCount": 1290, "totalTokenCount": 1560}
    parts = [{"text": "here"}, {"inlineData": {"mimeType": "image/png", "data": data}}]
    return {
        "candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}],
        "usageMetadata": usage | {"candidatesTokensDetails": details},
    }


def png(size: tuple[int, int] = (64, 48), colour: str | tuple[int, int, int] = "red") -> bytes:
    """Return the file of a picture of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


class ProviderServer(BatchServer):
    """The shipped server with more shapes and faults.

    Args:
        answer: Gets each request, in a thread of its connection; may be replaced.

    Attributes:
        fetched: Paths that were asked for by GET.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.RequestHandlerClass = _Handler
        self.fetched = []

    def url(self, shape: Shape = "openai") -> str:
        """Return what to give a client as the endpoint."""
        return self.base_url if shape == "openai" else f"{self.base_url}beta"

    def get(self, path: str) -> Response:
        self.fetched.append(path)
        return super().get(path)

    def respond(self, body: dict) -> Wire:
        return self.wire_of(Question(ENDPOINT, {}, json.dumps(body).encode()))

    def wire_of(self, question: Question) -> Wire:
        answer = self.answer(question)
        return answer if isinstance(answer, Wire) else Wire(body=said(question.shape, answer))

    def handle_error(self, request, client_address) -> None:
        """Clients go away, and connections are broken here on purpose."""


class ImageServer(ProviderServer):
    """Edits images.

    Args:
        script: Gets the number of each request; returns a PNG, None (no image, no error) or (status, body, headers).

    Attributes:
        asked: Path, headers and body of each request.
    """

    def __init__(self, script: Callable[[int], bytes | None | tuple[int, dict | bytes, dict[str, str]]]) -> None:
        super().__init__(self._edit)
        self.script, self.asked, self._lock = script, [], threading.Lock()

    def _edit(self, question: Question) -> Wire:
        with self._lock:
            self.asked.append((question.path, question.headers, question.data))
            image = self.script(len(self.asked))
        return Wire(*image) if isinstance(image, tuple) else Wire(body=edited(question.shape, image))


class Script:
    """An answer function that gives its answers in turn, the last one for ever, and keeps what it was asked."""

    def __init__(self, *answers: str | list[str] | Wire | Callable[[], str]) -> None:
        self.answers, self.questions = list(answers), []

    @property
    def bodies(self) -> list[dict]:
        return [question.body for question in self.questions]

    def __call__(self, question: Question) -> str | list[str] | Wire:
        self.questions.append(question)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer() if callable(answer) else answer


class _Handler(ChatHandler):
    server: ProviderServer

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        taken = self.server.batches.post(self.path, self.headers["Content-Type"], data)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self._send(taken or self.server.wire_of(Question(self.path, headers, data)))

    def _send(self, response: Response) -> None:
        wire = response if isinstance(response, Wire) else Wire(**vars(response))
        body = wire.body if isinstance(wire.body, bytes) else json.dumps(wire.body).encode()
        if wire.ending not in ("cut", "dripping"):
            self._wait(wire.delay)
        self.close_connection = wire.ending != "whole"
        if wire.ending == "silent":
            return
        self.send_response(wire.status)
        for name, value in {"Content-Type": "application/json", **wire.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if wire.ending == "dripping":
            for at in range(len(body)):
                self._wait(wire.delay)
                self.wfile.write(body[at : at + 1])
            return
        self.wfile.write(body if wire.ending == "whole" else body[: len(body) // 2])
        if wire.ending == "reset":  # closing throws away what was not received, and says so
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            time.sleep(0.02)
            self.connection.close()
        if wire.ending == "cut":
            self._wait(wire.delay)

    def _wait(self, seconds: float) -> None:
        """Wait, or until the client hangs up: it sends nothing before it has the answer."""
        select.select([self.connection], [], [], seconds)


def _message(content: dict) -> dict:
    """Turn a message of Gemini's into one of OpenAI's."""
    role = {"model": "assistant"}.get(content["role"], content["role"])
    parts = [_part(part) for part in content["parts"]]
    return {"role": role, "content": parts if role == "user" else parts[0]["text"]}


def _part(part: dict) -> dict:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    data = part["inline_data"]
    return {"type": "image_url", "image_url": {"url": f"data:{data['mime_type']};base64,{data['data']}"}}
