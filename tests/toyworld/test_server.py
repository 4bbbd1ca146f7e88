"""The toy world's chat server over HTTP, as any client would use it."""

from __future__ import annotations

import json

import httpx
import pytest

from repair_hf.runtime.options import UserError
from repair_hf.toyworld.server import ChatServer, Response

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello there"}]}


def ask(server: ChatServer, body: object = BODY, path: str = "/chat/completions", **options) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(server.base_url + path, content=content, timeout=60, **options)


def test_answers_in_the_openai_shape():
    with ChatServer(lambda body: body["messages"][0]["content"].upper()) as server:
        reply = ask(server).json()
    assert reply["model"] == "m" and reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "HELLO THERE"}
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


def test_whole_responses_and_errors():
    def answer(body):
        if body["model"] == "slow":
            return Response(429, {"error": "slow"}, {"Retry-After": "7"})
        raise ValueError("no picture")

    with ChatServer(answer) as server:
        slow, wrong = ask(server, BODY | {"model": "slow"}), ask(server)
        assert (slow.status_code, slow.headers["Retry-After"], slow.json()) == (429, "7", {"error": "slow"})
        assert wrong.status_code == 400 and wrong.json()["error"]["message"] == "no picture"
        assert {ask(server, body).status_code for body in (b"not JSON", [], {"model": "m"})} == {400}
        assert ask(server, path="/embeddings").status_code == 404
        assert ask(server, headers={"Host": "evil.org"}).status_code == 421
        with pytest.raises(UserError, match=f"Port {server.server_port} cannot be used"):
            ChatServer(answer, port=server.server_port)


def test_the_log_is_written_before_the_answer(tmp_path):
    log = tmp_path / "requests.jsonl"
    with ChatServer(lambda body: str(log.read_text().count("\n")), log=log) as server:
        replies = [ask(server, body).json() for body in (BODY, BODY | {"seed": 1}, BODY)]
    digests = [json.loads(line)["digest"] for line in log.read_text().splitlines()]
    seen = [reply["choices"][0]["message"]["content"] for reply in replies]
    assert seen == ["1", "2", "3"] and digests[0] == digests[2] != digests[1]
