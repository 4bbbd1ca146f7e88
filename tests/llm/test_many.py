"""Several answers to one question, asked for one by one or in one request, over HTTP on loopback."""

import pytest
from provider_server import Script, Wire, error, said

from repair_hf.llm.client import ProviderError, RefusedAnswer, UnparsedAnswer
from tests.llm.asking import QUESTION


@pytest.fixture
def ask_many(with_chat):
    """Asks for three texts; returns these and the usage."""

    def run(script: Script, *, together: bool = True):
        async def work(chat):
            how = {"together": together, "stage": "edit", "direction": "i2t", "temperature": 0.7, "max_tokens": 9}
            return await chat.ask_many(QUESTION, samples=3, **how), chat.usage["edit", "i2t"]

        return with_chat(script, work, "openai/gpt-4o-mini")

    return run


def numbers_asked(script: Script) -> list[int | None]:
    return [body.get("n") for body in script.bodies]


def test_many_one_by_one(ask_many):
    script = Script("a", "b", "c")
    texts, usage = ask_many(script, together=False)
    assert sorted(texts) == ["a", "b", "c"] and usage.calls == 3 and numbers_asked(script) == [None] * 3
    assert len({body["seed"] for body in script.bodies}) == 3


def test_many_together_are_paid_once(ask_many):
    script = Script(["a", "b", "c"], "not reached")
    texts, usage = ask_many(script)
    assert texts == ["a", "b", "c"] and numbers_asked(script) == [3]
    assert (usage.calls, usage.prompt_tokens) == (1, 1000) and usage.dollars > 0
    again, usage = ask_many(script)
    assert again == texts and numbers_asked(script) == [3] and (usage.calls, usage.replayed) == (0, 1)


@pytest.mark.parametrize("first", ["a", ["a", "", None], ["a", " ", ""], ["a", None, "z", "more than asked"]])
def test_those_that_do_not_come_together_are_asked_for_one_by_one(ask_many, first):
    script = Script(first, "x", "y")
    texts, _ = ask_many(script)
    given = len([text for text in texts if text in ("a", "z")])
    assert texts[0] == "a" and all(texts) and numbers_asked(script) == [3] + [None] * (3 - given)
    assert ask_many(Script("not reached"))[0] == texts


def test_a_refusal_among_many_stays_one(ask_many):
    first = said("openai", ["a", None, "c"])
    first["choices"][1]["finish_reason"] = "content_filter"
    script = Script(Wire(body=first), "not reached")
    texts, _ = ask_many(script)
    assert (texts[0], texts[2]) == ("a", "c") and isinstance(texts[1], RefusedAnswer) and len(script.bodies) == 1


@pytest.mark.parametrize("together", [True, False])
def test_many_that_are_of_no_use(ask_many, together):
    texts, _ = ask_many(Script(["", "", ""]), together=together)
    assert len(texts) == 3 and all(isinstance(text, UnparsedAnswer) for text in texts)


@pytest.mark.parametrize("together", [True, False])
def test_many_of_a_provider_that_does_not_serve(ask_many, together):
    with pytest.raises(ProviderError, match="no"):
        ask_many(Script(Wire(401, error("openai", 401, "no"))), together=together)


def test_a_server_that_knows_no_n_is_asked_one_by_one(ask_many):
    ask_many(Script("a"), together=False)  # it has served before
    unknown = Wire(400, error("openai", 400, "n is not supported"))
    script = Script(unknown, unknown, "never, for these are in the ledger")
    for times in (1, 2):  # another run may find the server changed
        assert ask_many(script)[0] == ["a", "a", "a"] and numbers_asked(script) == [3] * times
