"""Several answers to one question, over HTTP on loopback."""

import pytest
from provider_server import Script, Wire, error

from repair_hf.llm.client import ProviderError, UnparsedAnswer
from tests.llm.asking import QUESTION


@pytest.fixture
def ask_many(with_chat):
    """Asks for three texts; returns these and the usage."""

    def run(script: Script):
        async def work(chat):
            how = {"stage": "edit", "direction": "i2t", "temperature": 0.7, "max_tokens": 9}
            return await chat.ask_many(QUESTION, samples=3, **how), chat.usage["edit", "i2t"]

        return with_chat(script, work, "openai/gpt-4o-mini")

    return run


def test_each_is_a_request_with_a_seed_of_its_own_and_kept(ask_many):
    script = Script("a", "b", "c", "not reached")
    texts, usage = ask_many(script)
    assert sorted(texts) == ["a", "b", "c"] and usage.calls == 3
    assert len({body["seed"] for body in script.bodies}) == 3
    assert ask_many(script)[0] == texts and len(script.bodies) == 3


def test_many_that_are_of_no_use(ask_many):
    texts, _ = ask_many(Script(""))
    assert len(texts) == 3 and all(isinstance(text, UnparsedAnswer) for text in texts)


def test_many_of_a_provider_that_does_not_serve(ask_many):
    with pytest.raises(ProviderError, match="no"):
        ask_many(Script(Wire(401, error("openai", 401, "no"))))
