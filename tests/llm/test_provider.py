"""What goes over the wire, key by key, and what an exception of LiteLLM means."""

import asyncio
import os
from contextlib import nullcontext

import pytest
from provider_server import KEY, Script, Wire, error, said

from repair_hf.llm import paid_model
from repair_hf.llm.answers import FailedAnswer, response_format
from repair_hf.llm.provider import ProviderError, check_key, key_names, thinking_room
from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import use_keys, without_secrets
from tests.llm.asking import GOOD, QUESTION, Verdict

FORM = response_format(Verdict)
CLAUDE = {
    "id": "1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": GOOD}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1000, "output_tokens": 100},
}


@pytest.fixture
def sent(ask):
    """Asks once; returns the body that the server got."""

    def run(model, *, shape="openai", reply=GOOD, effort=None, **question):
        script = Script(reply)
        ask(script, model=model, shape=shape, asker={"reasoning_effort": effort}, **question)
        return script.questions[0].body

    return run


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ("openai/gpt-4o", FORM),
        ("openai/gpt-3.5-turbo", {"type": "json_object"}),
        ("openai/a-model-of-my-own", FORM),
        ("hosted_vllm/Qwen/Qwen2.5-VL-7B-Instruct", FORM),
    ],
)
def test_the_form_of_the_answer_is_asked_for_as_far_as_the_model_takes_it(model, form, sent):
    assert sent(model).get("response_format") == form


def test_how_gemini_is_asked_for_the_form_of_the_answer_and_not_to_think(sent):
    body = sent("gemini/gemini-2.5-flash", shape="gemini", effort="none")
    config = body["generationConfig"]
    assert config["response_mime_type"] == "application/json"
    assert config["response_json_schema"] == FORM["json_schema"]["schema"]
    assert config["thinkingConfig"]["thinkingBudget"] == 0 and config["max_output_tokens"] == 1024
    assert "media_resolution" not in str(body).lower()  # images have the default size that `IMAGE_TOKENS` counts
    body = sent("gemini/gemini-3.5-flash-lite", shape="gemini", effort="none")
    assert body["generationConfig"]["thinkingConfig"]["thinkingLevel"] == "minimal"  # this one cannot stop
    assert "reasoning_effort" not in sent("openai/gpt-4o", effort="none")


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        ("anthropic/claude-sonnet-4-5", None, None),
        ("anthropic/claude-sonnet-4-5", "none", None),
        ("anthropic/claude-sonnet-4-5", "low", "enabled"),
        ("anthropic/claude-sonnet-4-6", "high", "adaptive"),
    ],
)
def test_a_claude_that_thinks_is_asked_for_no_temperature(model, effort, thinking, sent):
    body = sent(model, reply=Wire(body=CLAUDE), effort=effort, max_tokens=5000)
    assert ("temperature" in body) == (thinking is None) and body.get("thinking", {}).get("type") == thinking


@pytest.mark.parametrize(
    ("model", "effort", "thinks"),
    [
        ("openai/gpt-4o", None, False),
        ("gemini/gemini-2.5-flash", None, True),
        ("gemini/gemini-2.5-flash", "none", False),
        ("gemini/gemini-3-flash-preview", "none", True),  # it thinks a little all the same
        ("openai/gpt-5-mini", "none", True),  # it does not know the word
        ("openai/gpt-5.1", "none", False),
        ("anthropic/claude-sonnet-4-5", "low", True),
    ],
)
def test_room_for_thoughts(model, effort, thinks):
    assert (thinking_room(model, effort) > 0) == thinks


def test_thoughts_are_paid_for_and_cached_prompts_are_cheaper(ask):
    usage = {
        "promptTokenCount": 1000,
        "cachedContentTokenCount": 600,
        "candidatesTokenCount": 100,
        "thoughtsTokenCount": 400,
        "totalTokenCount": 1500,
    }
    _, paid = ask(Script(Wire(body=said("gemini", GOOD) | {"usageMetadata": usage})), shape="gemini")
    assert (paid.prompt_tokens, paid.completion_tokens) == (1000, 500)
    assert paid.dollars == pytest.approx(400 * 0.3e-6 + 600 * 0.03e-6 + 500 * 2.5e-6)


# What LiteLLM's exceptions mean


@pytest.mark.parametrize(
    ("status", "message", "kind", "match"),
    [
        (
            400,
            "Cannot read 'a credit card on a balance beam'",
            FailedAnswer,
            "does not accept the request",
        ),
        (422, "Unable to process input image.", FailedAnswer, "does not accept the request: Unable to process"),
        (400, "Billing hard limit has been reached (billing_hard_limit_reached)", ProviderError, "no credit left"),
        (400, "Your credit balance is too low", ProviderError, "no credit left.*Every answer so far is kept"),
        (403, "Your country, region, or territory is not supported", ProviderError, "Your country, region"),
    ],
)
@pytest.mark.parametrize("shape", ["openai", "gemini"])
def test_what_an_error_means_goes_by_its_status(status, message, kind, match, shape, ask):
    with pytest.raises(kind, match=match) as caught:
        ask(Script(Wire(status, error(shape, status, message))), shape=shape)
    assert "{" not in str(caught.value)


def test_a_message_is_found_in_a_body_of_several_lines_and_a_long_one_is_cut(ask):
    body = (
        b'{\n  "error": {\n    "code": 404,\n    "message": "No such \\"model\\".",\n    "status": "NOT_FOUND"\n  }\n}'
    )
    with pytest.raises(ProviderError, match=r'does not accept the request: No such \\"model\\"\.'):
        ask(Script(Wire(404, body)), shape="gemini")
    with pytest.raises(FailedAnswer) as caught:
        ask(Script(Wire(400, error("openai", 400, "word " * 200))))
    assert str(caught.value).endswith("...") and len(str(caught.value)) < 600


# Keys


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"OPENAI_API_KEY": KEY, "AZURE_STORAGE_KEY": ""}, None),
        ({"OPENAI_API_KEY": f"{KEY}\r\n"}, "OPENAI_API_KEY begins or ends with a space or a line break"),
        ({"OPENAI_API_KEY": f"“{KEY}”"}, "OPENAI_API_KEY holds a character that no key has, such as a curly quot"),
        ({}, "No API key for openai/gpt-4o: set OPENAI_API_KEY"),
    ],
)
def test_a_usable_key_is_needed(keys, complaint, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=complaint) if complaint else nullcontext():
        check_key("openai/gpt-4o", None)


def test_hugging_face_takes_the_token_of_the_hub(monkeypatch):
    for name in [name for name in os.environ if name.startswith("HUGGING")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_TOKEN", KEY)
    check_key("huggingface/me/model", None)


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


def test_a_time_out_covers_the_whole_response_and_a_key_is_in_no_traceback(with_asker, monkeypatch):
    monkeypatch.setattr(paid_model, "MARGIN", -59.7)  # LiteLLM's own time-out, of the next byte, does not come first

    async def work(asker):
        asked = asker.ask(QUESTION, stage="audit", direction="i2t")
        return (await asyncio.gather(asked, return_exceptions=True))[0]

    dripping = Wire(body=said("openai", "yes"), ending="dripping", delay=0.05)
    fault = with_asker(Script(dripping), work, timeout=60.0)
    assert "failed 3 times, at last with: no whole response after 60 s" in str(fault)
