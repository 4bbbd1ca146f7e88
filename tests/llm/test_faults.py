"""What the client makes of every fault, in the shape of OpenAI's protocol and of Gemini's, over HTTP on loopback."""

import asyncio

import aiohttp
import pytest
from ledgers import ledger_in, rows
from provider_faults import FAULTS, LASTING, NOT_BILLED, PASSING, REFUSED, UNREADABLE, UNUSABLE
from provider_server import KEYS, MODELS, ProviderServer, Script, Wire

from repair_hf.llm.client import ChatModel, ProviderError, RefusedAnswer, UnparsedAnswer
from repair_hf.llm.errors import PassingError
from repair_hf.llm.provider import LiteLLM
from tests.llm.asking import GOOD, QUESTION, QUICK, Verdict

both_shapes = pytest.mark.parametrize("shape", ["openai", "gemini"])


@pytest.fixture
def ask(ask, monkeypatch):
    """Asks once, in a shape; returns the answer. Only the wait for a late answer is short, not that for a connection.

    The server gets each attempt before the next one is sent.
    """
    send, time_out = LiteLLM.__call__, aiohttp.ClientTimeout

    def run(shape, script, **question):
        is_late = isinstance(script.answers[0], Wire) and script.answers[0].delay > 0

        async def send_in_turn(provider, request):
            sent = len(script.questions)
            try:
                return await send(provider, request)
            except PassingError:
                while is_late and len(script.questions) == sent:
                    await asyncio.sleep(0.01)
                raise

        def impatient(**seconds):
            late = is_late and len(script.answers) > 1
            return time_out(**seconds | ({"sock_read": 0.1} if late else {}))

        monkeypatch.setattr(LiteLLM, "__call__", send_in_turn)
        monkeypatch.setattr(aiohttp, "ClientTimeout", impatient)
        return ask(script, shape=shape, **question)[0]

    return run


@both_shapes
@pytest.mark.parametrize("name", PASSING)
def test_what_passes_is_asked_again_and_counts_if_it_may_be_billed(name, shape, ask, tmp_path):
    script = Script(FAULTS[name](shape, GOOD), GOOD)
    assert ask(shape, script) == Verdict(valid=True, reason="it fits")
    first, second = script.questions
    assert first.body == second.body
    lost, (answer,) = rows(tmp_path, "lost"), rows(tmp_path)
    assert len(lost) == (name not in NOT_BILLED)
    for row in lost:
        assert (row["stage"], row["direction"], row["model"]) == ("audit", "i2t", MODELS[shape])
        assert row["worst"] > 200e-6 if shape == "gemini" else row["worst"] == 0  # OpenAI's is a model of our own
    with ledger_in(tmp_path) as ledger:  # as a rerun counts
        spent = (answer["dollars"] or 0.0) + sum(row["worst"] for row in lost)
        assert ledger.total == (pytest.approx(spent), 1 + len(lost))


@both_shapes
@pytest.mark.parametrize("name", [name for name in PASSING if "time-out" not in name])  # three of those take seconds
def test_what_does_not_pass_after_all_stops_the_run(name, shape, ask, tmp_path):
    script = Script(FAULTS[name](shape, GOOD))
    with pytest.raises(
        ProviderError, match="(failed 3 times in a row|cannot be read).*run the same command again"
    ) as caught:
        ask(shape, script)
    assert len(script.questions) == (2 if name in UNREADABLE else 3) and not rows(tmp_path)
    assert len(rows(tmp_path, "lost")) == (0 if name in NOT_BILLED else len(script.questions))
    body = FAULTS[name](shape, GOOD).body
    message = body["error"]["message"] if isinstance(body, dict) and "error" in body else ""
    assert message in str(caught.value) and "Exception" not in str(caught.value)


@both_shapes
@pytest.mark.parametrize("name", UNUSABLE)
def test_what_is_of_no_use_is_asked_once_more(name, shape, ask, tmp_path):
    script = Script(FAULTS[name](shape, GOOD), GOOD)
    assert ask(shape, script).valid
    assert len(script.questions) == 2 == len(rows(tmp_path))  # both were paid for
    script = Script(FAULTS[name](shape, GOOD))
    with pytest.raises(UnparsedAnswer):
        ask(shape, script, seed=1)
    assert len(script.questions) == 2 == len(rows(tmp_path)) - 2


@both_shapes
@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_ends_the_row_at_once_and_is_remembered(name, shape, ask, tmp_path):
    script = Script(FAULTS[name](shape, GOOD))
    for _ in range(2):
        with pytest.raises(RefusedAnswer) as caught:
            ask(shape, script)
    assert len(script.questions) == 1 == len(rows(tmp_path))
    words = {
        ("refusal", "openai"): "I cannot help with that.",
        ("refusal", "gemini"): "content_filter",
        ("content filter", "openai"): "content_filter",
        ("content filter", "gemini"): "content_filter",
        ("prompt filter", "openai"): "The prompt triggered the content management policy.",
        ("prompt filter", "gemini"): "content_filter",
    }
    assert words[name, shape] in str(caught.value)


@both_shapes
@pytest.mark.parametrize("name", LASTING)
def test_what_lasts_stops_the_run_at_once(name, shape, ask, tmp_path):
    fault = FAULTS[name](shape, GOOD)
    script = Script(fault)
    with pytest.raises(ProviderError) as caught:
        ask(shape, script)
    assert len(script.questions) == 1 and not rows(tmp_path)
    assert MODELS[shape] in str(caught.value) and fault.body["error"]["message"] in str(caught.value)


@both_shapes
def test_a_connection_that_the_server_has_closed_meanwhile_is_opened_anew(shape, tmp_path):
    script = Script(GOOD)

    async def main(base_url: str):
        with ledger_in(tmp_path) as ledger:
            chat = ChatModel(MODELS[shape], ledger=ledger, base_url=base_url, retries=QUICK)
            for seed in range(2):
                await chat.ask(QUESTION, stage="audit", direction="i2t", schema=Verdict, seed=seed)
                assert server.hangups.acquire(timeout=60)  # blocks the loop: the client cannot see the hang-up

    with ProviderServer(script, idle=0.1) as server:
        asyncio.run(main(server.url(shape)))
    assert len(script.questions) == 2


@both_shapes
def test_a_server_that_is_not_there(shape, tmp_path, ask, provider_and_loop, monkeypatch):
    monkeypatch.setattr(provider_and_loop[0], "url", lambda shape: "http://127.0.0.1:9/v1")
    with pytest.raises(ProviderError, match=r"failed 3 times in a row.*Cannot connect to host 127\.0\.0\.1:9"):
        ask(shape, Script(GOOD))
    assert not rows(tmp_path, "lost")  # nothing went out


@both_shapes
@pytest.mark.parametrize("key", [None, "planted-key-0123456789\n"])
def test_a_key_that_cannot_be_used_is_reported_at_once_and_not_shown(key, shape, ask, monkeypatch):
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.delenv(KEYS[shape]) if key is None else monkeypatch.setenv(KEYS[shape], key)
    script = Script(GOOD)
    with pytest.raises(
        ProviderError, match=f"does not accept the API key.*{'header' if key else KEYS[shape]}"
    ) as caught:
        ask(shape, script)
    assert not script.questions and "planted" not in str(caught.value)
