"""Keys for the providers, and a provider on loopback."""

import asyncio
from functools import partial

import pytest
from ledgers import ledger_in
from provider_server import KEY, KEYS, ProviderServer, Script

from repair_hf.llm.asker import Asker
from repair_hf.llm.options import RequestOptions
from tests.llm.asking import MODELS, QUESTION, QUICK, Verdict


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    for name in [*KEYS.values(), "ANTHROPIC_API_KEY", "AZURE_API_KEY"]:
        monkeypatch.setenv(name, KEY)


@pytest.fixture(scope="module")
def provider_and_loop():
    """A server and an event loop for a whole module: opening connections and clients takes longer than a question."""
    with ProviderServer(Script("")) as server, asyncio.Runner() as runner:
        yield server, runner


@pytest.fixture
def with_asker(provider_and_loop, tmp_path):
    """Runs a coroutine function of an `Asker` on the ledger of the test; the server answers by the script."""
    server, runner = provider_and_loop

    def run(
        script, work, model=None, *, shape="openai", max_usd=None, max_calls=None, retries=QUICK, price=None, **options
    ):
        async def main():
            with ledger_in(tmp_path, max_usd, max_calls) as ledger:
                how = {"options": RequestOptions(**options), "retries": retries, "price": price}
                return await work(Asker(model or MODELS[shape], ledger, base_url=server.url(shape), **how))

        server.answer = script
        return runner.run(main())

    return run


def _be_patient(asker, answer):
    asker.timeout = 60.0
    return answer


@pytest.fixture
def ask(with_asker):
    """Asks one question, by an `Asker` of its own; returns the answer and the usage.

    `first_timeout` is that of the first request alone, in seconds.
    """

    def run(script, *, model=None, shape="openai", schema=Verdict, asker=None, first_timeout=None, **question):
        async def work(asker):
            if first_timeout is not None:  # the other requests have time on any machine
                script.answers[0] = partial(_be_patient, asker, script.answers[0])
                asker.timeout = first_timeout
            answer = await asker.ask(QUESTION, stage="audit", direction="i2t", schema=schema, **question)
            return answer, asker.usage["audit", "i2t"]

        return with_asker(script, work, model, shape=shape, **(asker or {}))

    return run
