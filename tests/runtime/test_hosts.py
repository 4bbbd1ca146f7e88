"""Servers of ours answer requests to their own address only."""

from __future__ import annotations

import asyncio
import http.client
import socket
from urllib.parse import urlsplit

import pytest

from repair_hf.runtime.hosts import OwnHostOnly, is_own_host
from repair_hf.toyworld.server import ChatServer

ME = socket.gethostname()


@pytest.mark.parametrize(
    ("bound", "own", "others"),
    [
        (
            "127.0.0.1",
            ["127.0.0.1", "localhost:7860", "LOCALHOST", "[::1]:80"],
            ["evil.org", "10.0.0.5", "", None, ME],
        ),
        ("10.0.0.5", ["10.0.0.5:80", "localhost"], ["evil.org", "10.0.0.6", "127.0.0.1.evil.org"]),
        ("0.0.0.0", ["10.0.0.6:80", "[fe80::1]:80", ME, "localhost"], ["evil.org:80", "10.0.0.6.evil.org", ""]),
    ],
)
def test_a_host_is_its_own_or_refused(bound, own, others):
    assert all(is_own_host(host, bound) for host in own) and not any(is_own_host(host, bound) for host in others)


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/chat/completions"])
def test_the_oracle_answers_no_other_host(path):
    asked: list[dict] = []
    with ChatServer(lambda body: asked.append(body) or "yes") as server:
        connection = http.client.HTTPConnection(urlsplit(server.base_url).netloc, timeout=60)
        connection.request("POST" if "chat" in path else "GET", path, b"{}", headers={"Host": "evil.org"})
        assert connection.getresponse().status == 421 and not asked


@pytest.mark.parametrize(
    ("kind", "host", "sent"),
    [
        ("http", b"localhost:7860", ["app"]),
        ("http", b"evil.org", ["http.response.start", "http.response.body"]),
        ("websocket", b"evil.org", ["websocket.close"]),
        ("lifespan", b"", ["app"]),
    ],
)
def test_a_page_answers_no_other_host(kind, host, sent):
    async def main() -> list[str]:
        said: list[str] = []

        async def app(scope, receive, send) -> None:
            said.append("app")

        async def send(message) -> None:
            said.append(message["type"])

        await OwnHostOnly(app, "127.0.0.1")({"type": kind, "headers": [(b"host", host)]}, None, send)
        return said

    assert asyncio.run(main()) == sent
