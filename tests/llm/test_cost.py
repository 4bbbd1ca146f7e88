import asyncio
import base64
import re
import warnings
from contextlib import suppress

import pytest
from ledgers import ledger_in, pay
from provider_server import png

from repair_hf.llm import provider
from repair_hf.llm.asker import Asker
from repair_hf.llm.cost import (
    Usage,
    add_up,
    count_tokens,
    format_dollars,
    merged_usage,
    paid_in,
    price_per_image,
    price_per_token,
    text_tokens,
    usage_rows,
)
from repair_hf.llm.ledger import Ledger, Reply, Topic
from repair_hf.llm.ledger_file import FILE
from repair_hf.llm.provider import load_litellm
from repair_hf.synthesis.hosted import worst_price
from tests.llm.asking import IN, OUT, PRICED, TOKENS, texts

FLASH = "gemini/gemini-2.5-flash"


UNLISTED = ("openrouter/google/gemini-2.5-flash", "huggingface/me/some-model", "dashscope/qwen3-vl-plus", "openai/my")


@pytest.mark.parametrize("model", [*UNLISTED, "gemini/gemma-3-27b-it", "ollama/llava"])
def test_a_model_whose_price_is_not_listed_is_not_taken_to_be_free(model):
    assert price_per_token(model) == (None if model in UNLISTED else (0.0, 0.0))


def test_a_user_sees_no_warning_of_litellms_classes():
    """pydantic builds them when they are first used."""
    load_litellm()  # its import changes the filters
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        provider._ignore_warnings.cache_clear()
        load_litellm().Message.model_rebuild(force=True)
    assert not seen


@pytest.mark.parametrize(
    ("model", "size", "tokens"),
    [  # the examples that the providers give, or that follow from their rules
        ("gemini/gemini-3.5-flash-lite", (64, 64), 1120),
        ("vertex_ai/gemini-3.5-flash-lite", (2048, 1024), 1120),
        ("anthropic/claude-sonnet-4-5", (280, 280), 100),
        ("anthropic/claude-sonnet-4-5", (3136, 3136), 56 * 56),
        ("hosted_vllm/Qwen/Qwen2.5-VL-7B-Instruct", (281, 28), 11),
    ],
)
def test_messages_count_their_texts_and_their_images(model, size, tokens):
    url = "data:image/png;base64," + base64.b64encode(png(size)).decode()
    rules, question = "Judge what you see. " * 20, "Is it a dog?"
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    messages = [{"role": "system", "content": rules}, {"role": "user", "content": parts}]
    words = text_tokens(rules) + text_tokens(question)
    assert 90 < words < 120
    assert count_tokens(model, messages) == pytest.approx(words + tokens, abs=10)


def test_the_questions_of_other_tests_have_the_tokens_that_they_reckon_with():
    assert {count_tokens(PRICED, question) for question in texts(0, 100)} == {TOKENS}


def test_what_is_reserved_is_a_tenth_above_the_count_of_the_prompt_and_the_longest_answer():
    messages = [{"role": "user", "content": "Judge what you see. " * 200}]
    with Ledger() as ledger:
        worst = Asker(PRICED, ledger).worst({"messages": messages, "max_tokens": 100})
    assert worst == pytest.approx(1.1 * count_tokens(PRICED, messages) * IN + 100 * OUT, rel=0.002)


def test_usage_keeps_paid_and_replayed_apart():
    usage = Usage()
    priced, unpriced = (Reply("", "stop", 100, 10, dollars, "m") for dollars in (0.25, None))
    for reply in (priced, unpriced):
        usage.add(reply, replayed=False)
        usage.add(reply, replayed=True)
    assert usage == Usage(calls=2, replayed=2, prompt_tokens=200, completion_tokens=20, dollars=0.25, unpriced=1)


def test_batches_cost_what_the_model_lists_or_half(monkeypatch):
    full, half = price_per_token(FLASH), price_per_token(FLASH, batch=True)
    assert half == pytest.approx((full[0] / 2, full[1] / 2))
    listed = load_litellm().model_cost
    monkeypatch.setitem(listed, "openai/listed", listed["gpt-4o-mini"] | {"input_cost_per_token_batches": 4e-8})
    assert price_per_token("openai/listed", batch=True)[0] == 4e-8
    assert price_per_token("openai/my-local-model", batch=True) is None


@pytest.mark.parametrize(
    ("model", "dollars"),
    [("gemini/gemini-2.5-flash-image", 0.039), ("openai/gpt-image-1", 0.052), ("openai/my-editor", None)],
)
def test_price_of_an_image(model, dollars):
    assert price_per_image(model) == (dollars and pytest.approx(dollars, abs=0.001))


def test_an_image_costs_at_least_what_its_tokens_cost():
    """Every listed image model of the documented providers: the reserve and the quote cover its own token price."""
    listed = load_litellm().model_cost
    models = [name for name in listed if re.fullmatch(r"gemini/gemini-[\w.-]*image[\w.-]*|gpt-image-[\w.-]+", name)]
    assert len(models) > 5
    for name in models:
        model = name if "/" in name else f"openai/{name}"
        per_token = listed[name].get("output_cost_per_image_token") or 0.0
        tokens = 1_290 if "gemini-2.5" in name else 1_120 if "gemini" in name else 1_056
        assert (price_per_image(model) or 0.0) >= tokens * per_token, name
        assert worst_price(model) >= tokens * per_token, name


def test_usage_of_a_ledger_counts_what_was_lost_and_not_what_is_on_its_way(tmp_path):
    async def time_out() -> Reply:
        raise TimeoutError

    async def main() -> None:
        with suppress(TimeoutError):
            await ledger.pay("d", Topic("audit", "i2t", "m"), 0.5, time_out)
        await ledger.reserve("e", Topic("audit", "i2t", "m"), 0.5)
        one = {("audit", "i2t"): Usage(3, 0, 20, 4, 1.0), ("edit", "t2i"): Usage(1, 0, 10, 2, 0.25)}
        assert paid_in(tmp_path / FILE) == one
        assert merged_usage([one, one])["audit", "i2t"] == Usage(6, 0, 40, 8, 2.0)
        assert usage_rows(one)[0]["stage"] == "audit" and usage_rows(one)[0]["dollars"] == 1.0

    for key in "ab":
        pay(tmp_path, key, 0.25)
    pay(tmp_path, "c", 0.25, stage="edit", direction="t2i")
    with ledger_in(tmp_path) as ledger:
        asyncio.run(main())


def test_amounts_are_shown_as_they_are():
    assert [format_dollars(amount) for amount in (None, 0.0, 0.004, 0.005, 1234.5)] == [
        "unknown", "$0.00", "<$0.01", "$0.01", "$1,234.50",
    ]  # fmt: skip
    assert add_up([1.0, 2.0]) == 3.0 and add_up([1.0, None]) is None and add_up([]) == 0.0
