"""A provider that reports nonsense, sends without end, or echoes what a terminal obeys: nothing is lost by it."""

from __future__ import annotations

import gzip
import logging

import pytest
from fake_clock import time_out_when
from ledgers import ledger_in, rows
from provider_server import Script, Wire, error, said

from repair_hf.llm import provider
from repair_hf.llm.calls import _warn_of_usage
from repair_hf.llm.client import ChatModel
from repair_hf.llm.errors import ProviderError
from repair_hf.llm.sending import Retries
from tests.llm.asking import PRICED, texts

ONCE = Retries(attempts=1)
KEY = "planted/key+0123456789="


def billed(shape, **usage) -> Wire:
    name = "usage" if shape == "openai" else "usageMetadata"
    body = said(shape, "yes")
    return Wire(body=body | {name: body[name] | usage})


@pytest.mark.parametrize(
    ("shape", "usage"),
    [
        ("openai", {"prompt_tokens": -1000}),
        ("openai", {"completion_tokens": -100_000}),
        ("openai", {"prompt_tokens": 10**18}),
        ("openai", {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 1900}}),
        ("gemini", {"promptTokenCount": -1000}),
        ("gemini", {"candidatesTokenCount": -100_000}),
    ],
)
def test_an_impossible_usage_counts_as_the_worst_case_and_is_logged_once(shape, usage, with_chat, tmp_path, caplog):
    model = {"openai": PRICED, "gemini": "gemini/gemini-2.5-flash"}[shape]
    _warn_of_usage.cache_clear()

    async def work(chat: ChatModel) -> None:
        for question in texts(0, 3):
            await chat.ask(question, stage="audit", direction="i2t")

    with caplog.at_level(logging.WARNING, "repair_hf"):
        with_chat(Script(billed(shape, **usage)), work, model, shape=shape)
    found = rows(tmp_path)
    assert [(row["dollars"], row["prompt_tokens"], row["completion_tokens"]) for row in found] == [(None, 0, 0)] * 3
    with ledger_in(tmp_path) as ledger:
        assert ledger.total == (pytest.approx(sum(row["worst"] for row in found)), 3) and ledger.total[0] > 0
    assert [record.getMessage().count(model) for record in caplog.records] == [1]


ZEROS = bytes(2**20)
HUGE = {
    "endless": Wire(body=ZEROS, ending="huge"),
    "compressed": Wire(body=gzip.compress(ZEROS * 128), headers={"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("shape", ["openai", "gemini"])
@pytest.mark.parametrize("kind", HUGE)
def test_a_response_is_read_up_to_a_limit_and_counts_as_its_worst_case(kind, shape, ask, tmp_path):
    script = Script(HUGE[kind])
    with pytest.raises(ProviderError, match="larger than 64 MiB"):
        ask(script, model=PRICED if shape == "openai" else None, shape=shape, client={"retries": ONCE})
    (lost,) = rows(tmp_path, "lost")
    assert len(script.questions) == 1 and lost["worst"] > 0


@pytest.mark.parametrize("shape", ["openai", "gemini"])
def test_the_time_out_holds_for_the_whole_response(shape, ask, tmp_path, monkeypatch):
    """Each byte comes in time, the last one after a minute."""
    script = Script(Wire(body=said(shape, "yes"), ending="dripping", delay=0.2))
    monkeypatch.setattr(provider, "asyncio", time_out_when(lambda: script.questions))
    with pytest.raises(ProviderError, match="no whole response after 300 s"):
        ask(script, model=PRICED if shape == "openai" else None, shape=shape, client={"retries": ONCE})
    (lost,) = rows(tmp_path, "lost")
    assert lost["worst"] > 0


@pytest.mark.parametrize("shape", ["openai", "gemini"])
def test_a_message_of_a_server_neither_commands_the_terminal_nor_shows_a_key(shape, ask, monkeypatch):
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.setenv(name, KEY)
    message = f"\x1b[2Jbad \u202ekey\x07 {KEY}"
    with pytest.raises(ProviderError, match="bad") as caught:
        ask(Script(Wire(400, error(shape, 400, message))), shape=shape)
    assert str(caught.value).isprintable() and str(caught.value).count("<hidden>") == 1
    assert "planted" not in str(caught.value)
