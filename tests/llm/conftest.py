"""Keys for the providers, and a provider on loopback."""

import asyncio

import pytest
from ledgers import ledger_in
from provider_server import KEY, KEYS, MODELS, ProviderServer, Script

from repair_hf.llm.client import ChatModel
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.provider import LiteLLM
from tests.llm.asking import QUESTION, QUICK, Verdict


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    for name in [*KEYS.values(), "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY"]:
        monkeypatch.setenv(name, KEY)


@pytest.fixture(scope="module")
def provider_and_loop():
    """A server and an event loop for a whole module: opening connections and clients takes longer than a question."""
    with ProviderServer(Script("")) as server, asyncio.Runner() as runner:
        yield server, runner


@pytest.fixture
def with_chat(provider_and_loop, tmp_path):
    """Runs a coroutine function of a client, which has the test's ledger; the server answers by the script."""
    server, runner = provider_and_loop

    def run(script, work, model=None, *, shape="openai", max_usd=None, max_calls=None, retries=QUICK, **options):
        async def main():
            with ledger_in(tmp_path, max_usd, max_calls) as ledger:
                how = {"options": RequestOptions(**options), "retries": retries, "base_url": server.url(shape)}
                return await work(ChatModel(model or MODELS[shape], ledger=ledger, **how))

        server.answer = script
        return runner.run(main())

    return run


@pytest.fixture
def ask(with_chat):
    """Asks once, by a client of its own; returns the answer and the usage."""

    def run(script, *, model=None, shape="openai", schema=Verdict, client=None, **question):
        async def work(chat):
            answer = await chat.ask(QUESTION, stage="audit", direction="i2t", schema=schema, **question)
            return answer, chat.usage["audit", "i2t"]

        return with_chat(script, work, model, shape=shape, **(client or {}))

    return run


@pytest.fixture
def send(provider_and_loop):
    """Sends one request; returns the reply and what the server was asked."""
    server, runner = provider_and_loop

    def run(shape, answer, model=None, **parameters):
        server.answer = script = Script(answer)
        model = model or MODELS[shape]
        provider = LiteLLM(model, base_url=server.url(shape), timeout=60.0)
        request = {"model": model, "messages": QUESTION, "temperature": 0.0, "max_tokens": 50, "seed": 3, **parameters}
        reply = runner.run(provider(request))
        (question,) = script.questions  # neither LiteLLM nor an SDK asks again
        return reply, question

    return run
