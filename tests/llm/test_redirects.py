"""A redirect to another host is not followed: neither the key nor a picture goes there."""

import asyncio

import pytest
from hosted_editors import editor_at
from ledgers import ledger_in
from provider_server import MODELS, ProviderServer, Wire

from repair_hf.llm.batch_api import BatchAPI
from repair_hf.llm.client import ChatModel, ProviderError
from repair_hf.llm.sending import Retries
from tests.llm.asking import QUESTION, QUICK

ROUTES = ("chat/openai", "chat/gemini", "image/openai", "image/gemini", "batch/openai")


async def send(route: str, server: ProviderServer, folder, picture: bytes) -> None:
    kind, shape = route.split("/")
    if kind == "chat":
        with ledger_in(folder) as ledger:
            chat = ChatModel(MODELS[shape], ledger=ledger, base_url=server.url(shape), retries=QUICK)
            await chat.ask(QUESTION, stage="audit", direction="i2t")
    elif kind == "image":
        await (await editor_at(server, shape).request(picture, "make it red"))()
    else:
        await BatchAPI(MODELS[shape], base_url=server.url(shape), retries=Retries(attempts=1)).upload("b", b"{}\n")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("route", ROUTES)
def test_no_redirect_to_another_host_is_followed(route, status, tmp_path):
    from provider_server import png

    asked = []
    with ProviderServer(lambda question: asked.append(question) or "yes") as other:
        away = Wire(status, {}, {"Location": f"{other.base_url}/chat/completions"})
        with ProviderServer(lambda question: away) as server:
            server.batches.post = lambda *_: away if route.startswith("batch") else None
            with pytest.raises(ProviderError, match="redirect to another host, which is not followed"):
                asyncio.run(send(route, server, tmp_path, png()))
    assert not asked and not other.fetched
