"""A Hub on loopback that `huggingface_hub`, `datasets` and `transformers` push to and load from.

Xet is not served: clients run with HF_HUB_DISABLE_XET=1, and set HF_ENDPOINT before they import anything.
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from hub_client import Client
from hub_routes import ROUTES, Refused, Repo, Routes

__all__ = ["Client", "Fault", "Hub"]


@dataclass
class Fault:
    """Fails the next `times` requests whose `METHOD /path` matches: with a status, or a broken connection (`cut`)."""

    pattern: str
    status: int | str
    times: int = 1


class Hub:
    """The server. Use it as a context manager; `url` is HF_ENDPOINT."""

    def __init__(self, users: dict[str, str]) -> None:
        self.users = users  # token -> name
        self.repos: dict[tuple[str, str], Repo] = {}
        self.stored: dict[str, bytes] = {}  # LFS objects by SHA-256
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, int]] = []  # ("METHOD /path", status)
        self.received: list[str] = []  # LFS objects that were sent, whole
        self.before: dict[str, Callable[[], None]] = {}  # what to do once, when `METHOD /path` matches
        self.lock = threading.Lock()

    def __enter__(self) -> Hub:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *_) -> None:
        self._server.shutdown()
        self._server.server_close()

    def files(self, kind: str, name: str, revision: str = "main") -> dict[str, bytes]:
        return self.repos[kind, name].at(revision)[1]

    def count(self, pattern: str) -> int:
        """Count the requests that match."""
        return sum(re.match(pattern, request) is not None for request, _ in self.requests)

    def fault(self, request: str) -> int | str | None:
        with self.lock:
            for fault in self.faults:
                if fault.times and re.match(fault.pattern, request):
                    fault.times -= 1
                    return fault.status
        return None


class _Handler(Routes, BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_GET

    def log_message(self, *_) -> None:
        pass

    def _serve(self) -> None:
        path = urlsplit(self.path).path
        self.request_line = f"{self.command} {unquote(path)}"
        self.user = self.hub.users.get(self.headers.get("Authorization", "").removeprefix("Bearer "))
        fault = self.hub.fault(self.request_line)
        if fault == "cut":
            return self._cut()
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self._answer(path, fault)
        except Refused as refused:
            status, message, *code = refused.args
            self.send_json({"error": message}, status, *code)

    def _answer(self, path: str, fault: int | None) -> None:
        for pattern in [each for each in self.hub.before if re.match(each, self.request_line)]:
            self.hub.before.pop(pattern, lambda: None)()
        if fault is not None:
            raise Refused(fault, "a fault, as asked for")
        if "Authorization" in self.headers and self.user is None:
            raise Refused(401, "Invalid user token.")
        for verbs, pattern, route in ROUTES:
            if self.command in verbs.split() and (found := re.fullmatch(pattern, path)):
                return route(self, **{name: value and unquote(value) for name, value in found.groupdict().items()})
        raise Refused(404, f"no route for {self.request_line}")

    def _cut(self) -> None:
        """Take half of what is sent, then reset the connection."""
        self.hub.requests.append((self.request_line, 0))
        self.rfile.read(int(self.headers.get("Content-Length") or 0) // 2)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def send_whole(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.hub.requests.append((self.request_line, status))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, value: object, status: int = 200, code: str | None = None) -> None:
        headers = {"Content-Type": "application/json"} | ({"X-Error-Code": code} if code else {})
        if isinstance(value, dict) and "error" in value:
            headers["X-Error-Message"] = value["error"]
        self.send_whole(status, json.dumps(value).encode(), headers)
