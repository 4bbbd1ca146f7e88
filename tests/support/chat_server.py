"""A chat server of OpenAI's protocol on loopback, for the toy world's oracle or any other answer function.

With `log`, it writes a JSON line for each request (time, digest of the body) before it answers, so that a reader can
count requests.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from repair_hf.runtime.run_folder import digest
from repair_hf.toyworld import oracle

logger = logging.getLogger(__name__)

ENDPOINT = "/v1/chat/completions"


@dataclass(frozen=True)
class Response:
    """A whole HTTP response, to imitate a provider that does not simply answer."""

    status: int = 200
    body: dict | bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


Answer = Callable[[dict], str | Response]


class ChatServer(ThreadingHTTPServer):
    """Serves in the background while it is entered: `with ChatServer(answer) as server: ... server.base_url`.

    Args:
        answer: Answers the body of a request, in a thread of its connection, with a text or a
            whole `Response`. A ValueError becomes status 400 with its text.
        latency: Seconds that each answer waits.
        log: File that gets a line for each request.
    """

    daemon_threads = True
    request_queue_size = 256  # connections that may arrive at once

    def __init__(self, answer: Answer, *, latency: float = 0.0, log: str | Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.latency, self._log = answer, latency, log
        self.connections: set[socket.socket] = set()
        self._log_lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def __enter__(self) -> ChatServer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):  # the client was faster
                connection.shutdown(socket.SHUT_RDWR)

    def get(self, path: str) -> Response:
        return error(404, f"Nothing is served at {path}.")

    def post(self, path: str, content_type: str, data: bytes) -> Response:
        if path != ENDPOINT:
            return error(404, f"{path} is not served; ask {ENDPOINT}.")
        try:
            body = json.loads(data)
            body["model"], body["messages"]
        except (ValueError, TypeError, KeyError) as fault:
            return error(400, f"{path} takes JSON with `model` and `messages`: {fault!r}")
        self.note(body)
        time.sleep(self.latency)
        return self.respond(body)

    def note(self, body: dict) -> None:
        """Write the log's line of a request."""
        if self._log is not None:
            line = json.dumps({"time": time.time(), "digest": digest(body)})
            with self._log_lock, Path(self._log).open("a", encoding="ascii") as file:
                file.write(line + "\n")

    def respond(self, body: dict) -> Response:
        """Answer the body of a request."""
        try:
            answer = self.answer(body)
        except ValueError as fault:
            return error(400, str(fault))
        return answer if isinstance(answer, Response) else _completion(answer, body)


def error(status: int, message: str) -> Response:
    """Return the protocol's response to an invalid request."""
    return Response(status, {"error": {"message": message, "type": "invalid_request_error", "code": None}})


class Handler(BaseHTTPRequestHandler):
    server: ChatServer
    protocol_version = "HTTP/1.1"  # keeps connections open
    disable_nagle_algorithm = True  # otherwise the body waits until the client has acknowledged the head

    def handle(self) -> None:
        self.server.connections.add(self.connection)
        with contextlib.suppress(ConnectionError):  # the client went away
            super().handle()
        self.server.connections.discard(self.connection)

    def do_GET(self) -> None:
        self._send(self.server.get(self.path))

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self._send(self.server.post(self.path, self.headers["Content-Type"], data))

    def _send(self, response: Response) -> None:
        body = response.body if isinstance(response.body, bytes) else json.dumps(response.body).encode()
        self.send_response(response.status)
        for name, value in {"Content-Type": "application/json", **response.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        logger.debug(format, *args)


def _completion(text: str, request: dict) -> Response:
    tokens_in, tokens_out = oracle.count_tokens(request["messages"]), oracle.count_tokens(text)
    body = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request["model"],
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out},
    }
    return Response(body=body)
