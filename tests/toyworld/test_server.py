from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from repair_hf.runtime.options import UserError
from repair_hf.toyworld.server import ChatServer, Response

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}


def post(connection: http.client.HTTPConnection, body: object = BODY, path: str = "/v1/chat/completions"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, dict(response.headers), json.loads(response.read())


@pytest.fixture
def connect():
    """A keep-alive connection to a server of the given answer function."""
    opened = []

    def open_one(answer, **options) -> http.client.HTTPConnection:
        running = ChatServer(answer, **options).__enter__()
        connection = http.client.HTTPConnection(urlsplit(running.base_url).netloc, timeout=60)
        opened.append((running, connection))
        return connection

    yield open_one
    for running, connection in opened:
        connection.close()
        running.__exit__(None, None, None)


def test_answers_in_the_openai_shape(connect):
    status, _, reply = post(connect(lambda body: body["messages"][0]["content"].upper()))
    assert status == 200 and reply["model"] == "m" and reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "HELLO THERE"}
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


def test_one_connection_serves_many_requests_without_delay_until_the_end():
    with ChatServer(lambda body: "yes") as running:
        connection = http.client.HTTPConnection(urlsplit(running.base_url).netloc, timeout=60)
        assert post(connection)[0] == 200
        first = connection.sock
        assert post(connection)[0] == 200 and connection.sock is first
        [accepted] = running.connections
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # no delayed acknowledgements
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        post(connection)


def test_answers_that_are_no_text(connect):
    """A whole response, and an error of the client."""

    def answer(body):
        if body["n"] == 1:
            return Response(429, {"error": "slow"}, {"Retry-After": "7"})
        raise ValueError("no picture")

    connection = connect(answer)
    status, headers, reply = post(connection, {**BODY, "n": 1})
    assert (status, headers["Retry-After"], reply) == (429, "7", {"error": "slow"})
    status, _, reply = post(connection, {**BODY, "n": 2})
    assert status == 400 and reply["error"]["message"] == "no picture"


@pytest.mark.parametrize("body", [b"not JSON", [], {"model": "m"}])
def test_invalid_requests(connect, body):
    connection = connect(lambda body: "yes")
    status, _, reply = post(connection, body)
    assert status == 400 and "JSON with `model` and `messages`" in reply["error"]["message"]
    assert post(connection, body, path="/v1/embeddings")[0] == 404


def test_latency(connect):
    start = time.monotonic()
    post(connect(lambda body: "yes", latency=0.2))
    assert time.monotonic() - start > 0.19  # clocks are coarse


def test_log_is_written_before_the_answer(connect, tmp_path):
    log, seen = tmp_path / "requests.jsonl", []

    def answer(body):
        seen.append(log.read_text().count("\n"))
        return "yes"

    connection = connect(answer, log=log)
    for body in (BODY, {**BODY, "seed": 1}, BODY):
        post(connection, body)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert seen == [1, 2, 3] and abs(lines[0]["time"] - time.time()) < 60
    digests = [line["digest"] for line in lines]
    assert digests[0] == digests[2] != digests[1]


def test_connections_are_served_side_by_side():
    barrier = threading.Barrier(8, timeout=60)  # opens only if eight requests are in work at once
    with ChatServer(lambda body: str(barrier.wait())) as running, ThreadPoolExecutor(8) as pool:
        netloc = urlsplit(running.base_url).netloc
        connections = [http.client.HTTPConnection(netloc, timeout=60) for _ in range(8)]
        assert [status for status, _, _ in pool.map(post, connections)] == [200] * 8


def test_a_port_that_is_taken():
    with ChatServer(lambda body: "yes") as running:
        port = urlsplit(running.base_url).port
        with pytest.raises(UserError, match=f"Port {port} cannot be used"):
            ChatServer(lambda body: "yes", port=port)


def test_a_request_for_another_host_gets_no_answer(connect):
    connection = connect(lambda body: "yes")
    connection.request("GET", "/v1/batches", headers={"Host": "evil.org"})
    assert connection.getresponse().status == 421
