"""One request over LiteLLM, sent once: what goes over the wire, and what comes back of it."""

import os
import time
import traceback
from contextlib import nullcontext
from email.utils import formatdate

import pytest
from provider_faults import FAULTS
from provider_server import KEY, Wire, error, said

from repair_hf.llm.answers import response_format
from repair_hf.llm.cost import all_parts
from repair_hf.llm.loading import THINKING_TOKENS, check_key, key_names, thinking_room
from repair_hf.llm.provider import PassingError, ProviderError, RejectedRequest
from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import use_keys, without_secrets
from tests.llm.asking import QUESTION as MESSAGES
from tests.llm.asking import Verdict

FORM = response_format(Verdict)

both_shapes = pytest.mark.parametrize("shape", ["openai", "gemini"])


# What is sent


@both_shapes
def test_a_request_and_its_reply(shape, send):
    reply, question = send(shape, "It fits.")
    assert (reply.text, reply.finish, reply.prompt_tokens, reply.completion_tokens) == ("It fits.", "stop", 1000, 100)
    (message,) = question.messages
    assert [part["text"] for part in all_parts([message])] == [MESSAGES[0]["content"]]
    sent = question.body if shape == "openai" else question.body["generationConfig"]
    assert sent["temperature"] == 0.0 and question.seed == 3
    assert 50 in (sent.get("max_tokens"), sent.get("max_output_tokens"))
    assert KEY in str(question.headers)


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ("openai/gpt-4o", FORM),
        ("openai/gpt-3.5-turbo", {"type": "json_object"}),
        ("openai/a-model-of-my-own", FORM),
        ("hosted_vllm/Qwen/Qwen2.5-VL-7B-Instruct", FORM),
    ],
)
def test_the_form_of_the_answer_is_asked_for_as_far_as_the_model_takes_it(model, form, send):
    _, question = send("openai", "{}", model, response_format=FORM)
    assert question.body.get("response_format") == form


def test_how_gemini_is_asked_for_the_form_of_the_answer_and_not_to_think(send):
    _, question = send("gemini", "{}", response_format=FORM, reasoning_effort="none")
    sent, schema = question.body["generationConfig"], FORM["json_schema"]["schema"]
    assert sent["response_mime_type"] == "application/json" and sent["response_json_schema"] == schema
    assert sent["thinkingConfig"]["thinkingBudget"] == 0
    _, question = send("gemini", "{}", "gemini/gemini-3.5-flash-lite", reasoning_effort="none")
    assert question.body["generationConfig"]["thinkingConfig"]["thinkingLevel"] == "minimal"  # this one cannot stop
    assert "media_resolution" not in str(question.body).lower()  # so images have the default, as `image_tokens` counts
    _, question = send("openai", "It fits.", "openai/gpt-4o", reasoning_effort="none")
    assert "reasoning_effort" not in question.body


CLAUDE_SAYS = {
    "id": "1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "It fits."}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1000, "output_tokens": 100},
}


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        ("anthropic/claude-sonnet-4-5", None, None),
        ("anthropic/claude-sonnet-4-5", "none", None),
        ("anthropic/claude-sonnet-4-5", "low", "enabled"),
        ("anthropic/claude-sonnet-4-6", "high", "adaptive"),
    ],
)
def test_a_claude_that_thinks_is_asked_for_no_temperature(model, effort, thinking, send):
    how = {} if effort is None else {"reasoning_effort": effort}
    reply, question = send("openai", Wire(body=CLAUDE_SAYS), model, max_tokens=5000, response_format=FORM, **how)
    assert reply.text == "It fits." and ("temperature" in question.body) == (thinking is None)
    assert question.body.get("thinking", {}).get("type") == thinking


@pytest.mark.parametrize(
    ("model", "effort", "room"),
    [
        ("openai/gpt-4o", None, 0),
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


def test_a_model_without_a_listed_price_is_billed_by_the_providers_own_cost(send):
    body = said("openai", "It fits.")
    for cost, dollars in ((0.25, 0.25), (0, 0.0), (float("nan"), None), (True, None), ("1", None), (10**400, None)):
        reply, _ = send("openai", Wire(body=body | {"usage": body["usage"] | {"cost": cost}}))
        assert reply.dollars == dollars


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"OPENAI_API_KEY": KEY, "OPENAI_ADMIN_KEY": "", "AZURE_STORAGE_KEY": ""}, None),
        ({"OPENAI_API_KEY": "", "OPENAI_ADMIN_KEY": ""}, "_KEY is empty or holds a line break"),
        ({"OPENAI_API_KEY": f"{KEY}\n"}, "OPENAI_API_KEY is empty or holds a line break"),
        ({}, "set OPENAI_API_KEY"),
    ],
)
def test_one_usable_key_suffices(keys, complaint, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=complaint) if complaint else nullcontext():
        check_key("openai/gpt-4o", None)


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


def test_a_403_is_no_complaint_about_the_key(send):
    said = error("openai", 403, "Your country, region, or territory is not supported")
    with pytest.raises(ProviderError, match="some-model refuses access: Your country, region"):
        send("openai", Wire(403, said))
    reason = "openai/gpt-4o requires moderation on OpenAI. Your input was flagged for violence."
    moderated = {"error": {"code": 403, "message": reason, "metadata": {"reasons": ["violence"]}}}
    reply, _ = send("openai", Wire(403, moderated), "openrouter/openai/gpt-4o")
    assert reply.finish == "content_filter" and reason in reply.text


@both_shapes
def test_too_much_at_once_is_distinguished_from_other_failures(shape, send):
    for status in (429, 503):
        with pytest.raises(PassingError, match=r"^Slow down\.$") as caught:
            send(shape, Wire(status, error(shape, status, "Slow down."), {"Retry-After": "7"}))
        assert (caught.value.named_wait, caught.value.is_rate_limit) == (7.0, status == 429)


def test_a_wait_may_stand_in_the_body_or_be_a_date(send):
    tomorrow = formatdate(time.time() + 86400, usegmt=True)
    dated = Wire(429, error("openai", 429, "Slow down."), {"Retry-After": tomorrow})
    for shape, wire, seconds in (
        ("gemini", FAULTS["429 with a wait in the body"]("gemini", ""), 0.3),
        ("openai", dated, pytest.approx(86400, abs=300)),
    ):
        with pytest.raises(PassingError) as caught:
            send(shape, wire)
        assert caught.value.named_wait == seconds


def test_a_long_reason_is_cut(send):
    with pytest.raises(PassingError) as caught:
        send("openai", Wire(500, error("openai", 500, "word " * 200)))
    assert len(str(caught.value)) == 500 and str(caught.value).endswith("...")


# What must not be seen


@both_shapes
@pytest.mark.parametrize("status", [400, 401, 403, 429, 500])
def test_a_key_that_the_provider_repeats_is_in_no_traceback(shape, status, send):
    with pytest.raises((ProviderError, PassingError)) as caught:
        send(shape, Wire(status, error(shape, status, f"Incorrect API key provided: {KEY}.")))
    shown = "".join(traceback.format_exception(caught.value))
    assert "Incorrect API key provided: <hidden>." in shown and KEY not in shown


@pytest.mark.parametrize("code", ["content_filter", "content_policy_violation"])
def test_a_key_that_a_filter_repeats_is_not_in_the_reply(code, send):
    blocked = Wire(400, error("openai", 400, f"Blocked for {KEY}.", code))
    assert send("openai", blocked)[0].text == "Blocked for <hidden>."


def test_only_the_keys_in_use_are_hidden_and_what_looks_like_one(monkeypatch):
    monkeypatch.setenv("MY_OWN_TOKEN", "a man who holds an umbrella")
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # a stand-in, and a word of the language
    for name, model in {"AWS_BEARER_TOKEN_BEDROCK": "bedrock/x", "WATSONX_APIKEY": "watsonx/x"}.items():
        monkeypatch.setenv(name, f"the-value-of-{name}")
        use_keys(key_names(model))
        assert without_secrets(f"Key the-value-of-{name}.") == "Key <hidden>."
    text = "a man who holds an umbrella and none; sk-0123456789abcdef and https://me:word@host/ are hidden"
    shown = "a man who holds an umbrella and none; <hidden> and https://<hidden>@host/ are hidden"
    assert without_secrets(text) == shown


def test_hugging_face_takes_the_token_of_the_hub(monkeypatch):
    for name in [name for name in os.environ if name.startswith("HUGGING")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_TOKEN", KEY)
    check_key("huggingface/me/model", None)
