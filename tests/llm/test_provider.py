"""One request over LiteLLM, sent once: what goes over the wire, and what comes back of it."""

from __future__ import annotations

import asyncio
import logging
import traceback

import pytest
from faulty_server import FAULTS, KEYS, MODELS, FaultyServer, Script, Wire, error, said

from repair_hf.llm.loading import load_litellm
from repair_hf.llm.provider import (
    THINKING_TOKENS,
    LiteLLM,
    PassingFailure,
    ProviderError,
    RejectedRequest,
    thinking_room,
)
from repair_hf.options import UserError
from repair_hf.runs import without_secrets

KEY = "planted-key-0123456789"
MESSAGES = [{"role": "user", "content": "Does it fit? Reply with one JSON object."}]
SCHEMA = {
    "type": "object",
    "properties": {"fits": {"type": "boolean"}},
    "required": ["fits"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "Verdict", "strict": True, "schema": SCHEMA}}

both_shapes = pytest.mark.parametrize("shape", ["openai", "gemini"])


@pytest.fixture(autouse=True)
def _keys(monkeypatch):
    for name in [*KEYS.values(), "ANTHROPIC_API_KEY"]:
        monkeypatch.setenv(name, KEY)


@pytest.fixture(scope="module")
def house():
    with FaultyServer(Script("")) as server, asyncio.Runner() as runner:
        yield server, runner


@pytest.fixture
def send(house):
    """Sends one request; gives back the reply and what the server was asked."""
    server, runner = house

    def run(shape, answer, model=None, **parameters):
        server.answer = script = Script(answer)
        model = model or MODELS[shape]
        provider = LiteLLM(model, base_url=server.base_url(shape), timeout=60.0)
        request = {"model": model, "messages": MESSAGES, "temperature": 0.0, "max_tokens": 50, "seed": 3, **parameters}
        reply = runner.run(provider(request))
        (question,) = script.questions  # neither LiteLLM nor an SDK asks again
        return reply, question

    return run


# What is sent


@both_shapes
def test_a_request_and_its_reply(shape, send):
    reply, question = send(shape, "It fits.")
    assert (reply.text, reply.finish, reply.prompt_tokens, reply.completion_tokens) == ("It fits.", "stop", 1000, 100)
    assert reply.others == ()
    (message,) = question.messages
    parts = message["content"]
    assert parts == MESSAGES[0]["content"] or [part["text"] for part in parts] == [MESSAGES[0]["content"]]
    sent = question.body if shape == "openai" else question.body["generationConfig"]
    assert sent["temperature"] == 0.0 and question.seed == 3
    assert 50 in (sent.get("max_tokens"), sent.get("max_output_tokens"))
    assert KEY in str(question.headers)


@both_shapes
def test_several_answers_to_one_request(shape, send):
    reply, question = send(shape, Wire(body=said(shape, "It fits.", times=3)), n=3)
    assert 3 in (question.body.get("n"), question.body.get("generationConfig", {}).get("candidate_count"))
    assert reply.text == "It fits." and reply.others == (("It fits.", "stop"), ("It fits.", "stop"))
    assert reply.completion_tokens == 100


@both_shapes
def test_fewer_answers_than_asked_for(shape, send):
    assert send(shape, "It fits.", n=3)[0].others == ()


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ("openai/gpt-4o", FORM),
        ("openai/gpt-3.5-turbo", {"type": "json_object"}),
        ("openai/a-model-of-my-own", None),
        ("hosted_vllm/Qwen/Qwen2.5-VL-7B-Instruct", FORM),
    ],
)
def test_the_form_of_the_answer_is_asked_for_as_far_as_the_model_takes_it(model, form, send):
    _, question = send("openai", "{}", model, response_format=FORM)
    assert question.body.get("response_format") == form


def test_the_form_of_the_answer_for_gemini(send):
    _, question = send("gemini", "{}", response_format=FORM)
    sent = question.body["generationConfig"]
    assert sent["response_mime_type"] == "application/json" and sent["response_json_schema"] == SCHEMA


def test_how_much_to_think_is_told_to_a_model_that_knows_the_word(send):
    _, question = send("gemini", "It fits.", reasoning_effort="none")
    assert question.body["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 0
    _, question = send("openai", "It fits.", "openai/gpt-4o", reasoning_effort="none")
    assert "reasoning_effort" not in question.body


@pytest.mark.parametrize(
    ("model", "effort", "room"),
    [
        ("openai/gpt-4o", None, 0),
        ("openai/a-model-of-my-own", "low", 0),
        ("gemini/gemini-2.5-flash", None, THINKING_TOKENS),
        ("gemini/gemini-2.5-flash", "none", 0),
        ("gemini/gemini-3-flash-preview", "none", THINKING_TOKENS),  # it thinks a little all the same
        ("openai/gpt-5-mini", "none", THINKING_TOKENS),  # it does not know the word
        ("openai/gpt-5.1", "none", 0),
        ("anthropic/claude-sonnet-4-5", "low", THINKING_TOKENS),
    ],
)
def test_room_for_thoughts(model, effort, room):
    assert thinking_room(model, effort) == room


def test_thoughts_are_paid_for_and_cached_prompts_are_cheaper(send):
    usage = {
        "promptTokenCount": 1000,
        "cachedContentTokenCount": 600,
        "candidatesTokenCount": 100,
        "thoughtsTokenCount": 400,
        "totalTokenCount": 1500,
    }
    reply, _ = send("gemini", Wire(body=said("gemini", "It fits.") | {"usageMetadata": usage}))
    assert (reply.prompt_tokens, reply.completion_tokens) == (1000, 500)
    assert reply.dollars == pytest.approx(400 * 0.3e-6 + 600 * 0.03e-6 + 500 * 2.5e-6)


def test_model_without_provider():
    with pytest.raises(UserError, match="'some-model-of-mine' names no provider"):
        LiteLLM("some-model-of-mine", base_url=None, timeout=1.0)


def test_a_warning_of_litellm_comes_once(caplog):
    load_litellm()
    for _ in range(2):
        logging.getLogger("LiteLLM").warning("`temperature` may go one day")
    logging.getLogger("LiteLLM").warning("something else")
    assert caplog.messages == ["`temperature` may go one day", "something else"]


# What does not come back


@both_shapes
@pytest.mark.parametrize("status", [400, 422])
def test_a_request_that_is_not_accepted(shape, status, send):
    with pytest.raises(RejectedRequest, match="does not accept the request: Unable to process input image"):
        send(shape, Wire(status, error(shape, status, "Unable to process input image.")))


@pytest.mark.parametrize(
    "message", ["Billing hard limit has been reached", "Your credit balance is too low", "Insufficient balance"]
)
def test_a_400_for_want_of_money_is_not_the_fault_of_the_request(message, send):
    with pytest.raises(ProviderError, match=message) as caught:
        send("openai", Wire(400, error("openai", 400, message)))
    assert not isinstance(caught.value, RejectedRequest)


@both_shapes
def test_too_much_at_once_is_told_from_other_failures(shape, send):
    for status in (429, 503):
        with pytest.raises(PassingFailure, match=r"^Slow down\.$") as caught:
            send(shape, Wire(status, error(shape, status, "Slow down."), {"Retry-After": "7"}))
        assert (caught.value.named_wait, caught.value.is_rate_limit) == (7.0, status == 429)


@both_shapes
def test_a_wait_is_read_wherever_it_stands(shape, send):
    with pytest.raises(PassingFailure) as caught:
        send(shape, FAULTS["429 with a wait in the body"](shape, ""))
    assert caught.value.named_wait == 0.3


def test_a_long_reason_is_cut(send):
    with pytest.raises(PassingFailure) as caught:
        send("openai", Wire(500, error("openai", 500, "word " * 200)))
    assert len(str(caught.value)) == 300 and str(caught.value).endswith("...")


# What must not be seen


@both_shapes
@pytest.mark.parametrize("status", [400, 401, 403, 429, 500])
def test_a_key_that_the_provider_repeats_is_in_no_traceback(shape, status, send):
    with pytest.raises((ProviderError, PassingFailure)) as caught:
        send(shape, Wire(status, error(shape, status, f"Incorrect API key provided: {KEY}.")))
    shown = "".join(traceback.format_exception(caught.value))
    assert "Incorrect API key provided: <hidden>." in shown and KEY not in shown


def test_a_key_that_a_filter_repeats_is_not_in_the_reply(send):
    blocked = Wire(400, error("openai", 400, f"Blocked for {KEY}.", "content_filter"))
    assert send("openai", blocked)[0].text == "Blocked for <hidden>."


def test_secrets_are_told_by_where_they_come_from_and_by_how_they_look(monkeypatch):
    monkeypatch.setenv("MY_OWN_TOKEN", "open-sesame\n")
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # a stand-in, and a word of the language
    text = "open-sesame opens none; sk-0123456789abcdef and https://me:word@host/ are hidden"
    assert without_secrets(text) == "<hidden> opens none; <hidden> and https://<hidden>@host/ are hidden"
