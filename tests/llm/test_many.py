"""Several answers to one question, asked for one by one or in one request, from a real HTTP server on loopback."""

from __future__ import annotations

import asyncio

import pytest

from repair_hf.llm.client import ChatModel, ProviderError, RefusedAnswer, UnparsedAnswer
from repair_hf.llm.journal import Journal
from repair_hf.toyworld.server import ChatServer, Response

QUESTION = [{"role": "user", "content": "Put the caption right."}]


class Script:
    """Gives its responses in turn, the last one for ever; keeps what it was asked."""

    def __init__(self, *responses: Response) -> None:
        self.responses, self.bodies = list(responses), []

    def __call__(self, body: dict) -> Response:
        self.bodies.append(body)
        return self.responses.pop(0) if len(self.responses) > 1 else self.responses[0]


def choices(*contents: str | None) -> Response:
    """A response with so many choices; 1000 tokens in, 100 out."""
    made = [
        {"index": k, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        for k, content in enumerate(contents)
    ]
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    return Response(
        body={"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": made, "usage": usage}
    )


@pytest.fixture
def ask_many(tmp_path, monkeypatch):
    """Asks a scripted server for three texts; gives back these and the usage."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")

    def run(script: Script, *, together: bool = True):
        async def main(base_url: str):
            with Journal(tmp_path / "journal.jsonl") as journal:
                chat = ChatModel("openai/gpt-4o-mini", journal=journal, base_url=base_url)
                texts = await chat.ask_many(
                    QUESTION,
                    samples=3,
                    together=together,
                    stage="edit",
                    direction="i2t",
                    temperature=0.7,
                    max_tokens=9,
                )
                return texts, chat.usage["edit", "i2t"]

        with ChatServer(script) as server:
            return asyncio.run(main(server.base_url))

    return run


def numbers_asked(script: Script) -> list[int | None]:
    return [body.get("n") for body in script.bodies]


def test_many_one_by_one(ask_many):
    script = Script(choices("a"), choices("b"), choices("c"))
    texts, usage = ask_many(script, together=False)
    assert sorted(texts) == ["a", "b", "c"] and usage.calls == 3 and numbers_asked(script) == [None] * 3
    assert len({body["seed"] for body in script.bodies}) == 3


def test_many_together_are_paid_once(ask_many):
    script = Script(choices("a", "b", "c"), choices("not reached"))
    texts, usage = ask_many(script)
    assert texts == ["a", "b", "c"] and numbers_asked(script) == [3]
    assert (usage.calls, usage.prompt_tokens) == (1, 1000) and usage.dollars > 0
    again, usage = ask_many(script)
    assert again == texts and numbers_asked(script) == [3] and (usage.calls, usage.replayed) == (0, 1)


@pytest.mark.parametrize(
    "first", [choices("a"), choices("a", "", None), choices("a", " ", ""), choices("a", None, "z", "more than asked")]
)
def test_those_that_do_not_come_together_are_asked_for_one_by_one(ask_many, first):
    script = Script(first, choices("x"), choices("y"))
    texts, _ = ask_many(script)
    given = len([text for text in texts if text in ("a", "z")])
    assert texts[0] == "a" and all(texts) and numbers_asked(script) == [3] + [None] * (3 - given)
    assert ask_many(Script(choices("not reached")))[0] == texts


def test_a_refusal_among_many_stays_one(ask_many):
    first = choices("a", None, "c")
    first.body["choices"][1]["finish_reason"] = "content_filter"
    script = Script(first, choices("not reached"))
    texts, _ = ask_many(script)
    assert (texts[0], texts[2]) == ("a", "c") and isinstance(texts[1], RefusedAnswer) and len(script.bodies) == 1


@pytest.mark.parametrize("together", [True, False])
def test_many_that_are_of_no_use(ask_many, together):
    texts, _ = ask_many(Script(choices("", "", "")), together=together)
    assert len(texts) == 3 and all(isinstance(text, UnparsedAnswer) for text in texts)


@pytest.mark.parametrize("together", [True, False])
def test_many_of_a_provider_that_does_not_serve(ask_many, together):
    with pytest.raises(ProviderError, match="no"):
        ask_many(Script(Response(401, {"error": {"message": "no"}})), together=together)


def test_a_server_that_knows_no_n_is_asked_one_by_one(ask_many):
    ask_many(Script(choices("a")), together=False)  # it has served before
    unknown = Response(400, {"error": {"message": "n is not supported"}})
    script = Script(unknown, choices("never, for these are in the journal"))
    assert ask_many(script)[0] == ["a", "a", "a"] and numbers_asked(script) == [3]
