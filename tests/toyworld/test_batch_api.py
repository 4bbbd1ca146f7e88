"""The batch API of the toy world's server, over HTTP as any client would use it."""

from __future__ import annotations

import json

import httpx
import pytest

from repair_hf.toyworld.server import ChatServer, Hangup, Response

WISH = {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h"}


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
def client(server):
    with httpx.Client(base_url=server.base_url, timeout=60) as client:
        yield client


def upload(client, content: str, purpose: str = "batch") -> httpx.Response:
    return client.post("/files", data={"purpose": purpose}, files={"file": ("a.jsonl", content.encode())})


def hand_in(client, rows: list[dict]) -> dict:
    file = upload(client, "\n".join(map(json.dumps, rows))).json()
    return client.post("/batches", json=WISH | {"input_file_id": file["id"], "metadata": {"a": "b"}}).json()


def look(client, id: str) -> dict:
    return client.get(f"/batches/{id}").json()


def content(client, id: str) -> list[dict]:
    return [json.loads(line) for line in client.get(f"/files/{id}/content").text.splitlines()]


def test_answers_come_when_the_time_has_come(server, client, tmp_path):
    server.batches.delay = 3600
    batch = hand_in(client, [row("a", "yes"), row("b", "no")])
    assert look(client, batch["id"])["status"] == batch["status"] == "in_progress"
    assert (tmp_path / "log.jsonl").read_text().count("\n") == 2
    server.batches.delay = 0
    found = look(client, batch["id"])
    assert found["status"] == "completed" and found["metadata"] == {"a": "b"} and found["error_file_id"] is None
    assert found["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    lines = {line["custom_id"]: line["response"]["body"] for line in content(client, found["output_file_id"])}
    assert [lines[name]["choices"][0]["message"]["content"] for name in "ab"] == ["YES", "NO"]
    assert look(client, batch["id"]) == found  # answered once
    assert [one["id"] for one in client.get("/batches?limit=100").json()["data"]] == [batch["id"]]


def test_what_fails_stands_in_a_file_of_its_own(client):
    rows = [row("a", "yes"), row("b", "slow"), row("c", "wrong"), row("d", "hang up")]
    batch = look(client, hand_in(client, rows)["id"])
    told = {line["custom_id"]: line["response"]["status_code"] for line in content(client, batch["error_file_id"])}
    assert told == {"b": 429, "c": 400, "d": 500} and len(content(client, batch["output_file_id"])) == 1


@pytest.mark.parametrize("bad", [[row("a", "yes", url="/v1/embeddings")], [{"custom_id": "a"}], [row("", "yes")]])
def test_a_file_of_something_else_fails(client, bad):
    batch = look(client, hand_in(client, bad)["id"])
    assert batch["status"] == "failed" and "Not a request" in batch["errors"]["data"][0]["message"]


def test_what_is_not_there(client):
    assert upload(client, "{}", purpose="assistants").status_code == 400
    assert client.post("/batches", json=WISH).status_code == 404
    paths = ("/batches/b", "/files/f/content", "/models", "/batches/b/c")
    assert {client.get(path).status_code for path in paths} == {404}
