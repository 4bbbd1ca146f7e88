"""The batch API of the toy world's server, over HTTP as any client would use it."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

import pytest

from repair_hf.toyworld.server import ChatServer, Hangup, Response

BOUNDARY = "----12345"


def row(name: str, said: str, url: str = "/v1/chat/completions") -> dict:
    body = {"model": "m", "messages": [{"role": "user", "content": said}]}
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def answer(body: dict) -> str | Response:
    said = body["messages"][0]["content"]
    if said == "hang up":
        raise Hangup
    if said == "wrong":
        raise ValueError("no picture")
    return Response(429, {"error": {"message": "slow"}}) if said == "slow" else said.upper()


@pytest.fixture
def server(tmp_path):
    with ChatServer(answer, log=tmp_path / "log.jsonl") as running:
        yield running


@pytest.fixture
def call(server):
    connection = http.client.HTTPConnection(urlsplit(server.base_url).netloc, timeout=60)

    def send(method: str, path: str, data: bytes | None = None, kind: str = "application/json"):
        connection.request(method, f"/v1/{path}", data, {"Content-Type": kind})
        response = connection.getresponse()
        return response.status, response.read()

    yield send
    connection.close()


def upload(call, content: bytes, purpose: str = "batch") -> tuple[int, dict]:
    parts = [("purpose", "", purpose.encode()), ("file", '; filename="a.jsonl"', content)]
    form = b"".join(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + data + b"\r\n"
        for name, more, data in parts
    )
    form += f"--{BOUNDARY}--\r\n".encode()
    status, body = call("POST", "files", form, f"multipart/form-data; boundary={BOUNDARY}")
    return status, json.loads(body)


def hand_in(call, rows: list[dict]) -> dict:
    _, file = upload(call, "\n".join(map(json.dumps, rows)).encode())
    wish = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    status, batch = call("POST", "batches", json.dumps(wish | {"metadata": {"name": "ours"}}).encode())
    assert status == 200
    return json.loads(batch)


def look(call, id: str) -> dict:
    return json.loads(call("GET", f"batches/{id}")[1])


def content(call, id: str) -> list[dict]:
    return [json.loads(line) for line in call("GET", f"files/{id}/content")[1].splitlines()]


def test_answers_come_when_the_time_has_come(server, call, tmp_path):
    server.batches.delay = 3600
    batch = hand_in(call, [row("a", "yes"), row("b", "no")])
    assert look(call, batch["id"])["status"] == batch["status"] == "in_progress"
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 2
    server.batches.delay = 0
    found = look(call, batch["id"])
    assert found["status"] == "completed" and found["metadata"] == {"name": "ours"} and found["error_file_id"] is None
    assert found["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    lines = {line["custom_id"]: line["response"]["body"] for line in content(call, found["output_file_id"])}
    assert [lines[name]["choices"][0]["message"]["content"] for name in "ab"] == ["YES", "NO"]
    assert look(call, batch["id"]) == found  # answered once
    assert [one["id"] for one in json.loads(call("GET", "batches?limit=100")[1])["data"]] == [batch["id"]]


def test_what_fails_stands_in_a_file_of_its_own(call):
    rows = [row("a", "yes"), row("b", "slow"), row("c", "wrong"), row("d", "hang up")]
    batch = look(call, hand_in(call, rows)["id"])
    told = {line["custom_id"]: line["response"]["status_code"] for line in content(call, batch["error_file_id"])}
    assert told == {"b": 429, "c": 400, "d": 500} and len(content(call, batch["output_file_id"])) == 1


@pytest.mark.parametrize("bad", [[row("a", "yes", url="/v1/embeddings")], [{"custom_id": "a"}], [row("", "yes")]])
def test_a_file_of_something_else_fails(call, bad):
    batch = look(call, hand_in(call, bad)["id"])
    assert batch["status"] == "failed" and "Not a request" in batch["errors"]["data"][0]["message"]


def test_what_is_not_there(call):
    assert upload(call, b"{}", purpose="assistants")[0] == 400
    wish = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert call("POST", "batches", json.dumps(wish).encode())[0] == 404
    assert {call("GET", path)[0] for path in ("batches/b", "files/f/content", "models", "batches/b/c")} == {404}
