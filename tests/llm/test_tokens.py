import base64

import pytest
from provider_server import png

from repair_hf.llm.tokens import PromptSize, count_tokens, image_tokens, text_tokens

GEMINI = "gemini/gemini-2.5-flash"


@pytest.mark.parametrize(
    ("model", "size", "tokens"),
    [  # the examples that the providers give, or that follow from their rules
        (GEMINI, (384, 384), 258),
        (GEMINI, (385, 200), 258 * 3 * 2),
        (GEMINI, (960, 540), 258 * 3 * 2),
        (GEMINI, (500, 375), 258 * 2 * 2),
        ("vertex_ai/gemini-2.5-pro", (375, 500), 258 * 2 * 2),
        ("gemini/gemini-3.5-flash-lite", (64, 64), 1120),
        ("vertex_ai/gemini-3.5-flash-lite", (2048, 1024), 1120),
        ("openai/gpt-4o", (1024, 1024), 765),
        ("openai/gpt-4o", (2048, 4096), 1105),
        ("gpt-4o", (512, 512), 255),
        ("openai/gpt-4o-mini", (512, 512), 8500),
        ("openai/gpt-4.1-mini", (1024, 1024), 1659),
        ("anthropic/claude-sonnet-4-5", (280, 280), 100),
        ("anthropic/claude-sonnet-4-5", (3136, 3136), 56 * 56),
        ("hosted_vllm/Qwen/Qwen2.5-VL-7B-Instruct", (281, 28), 11),
        ("world/oracle", (64, 64), 258),
    ],
)
def test_images_count_by_their_providers_rule(model, size, tokens):
    assert image_tokens(model, *size) == tokens


def test_messages_count_their_texts_and_their_images():
    url = "data:image/png;base64," + base64.b64encode(png((500, 375))).decode()
    rules, question = "Judge what you see. " * 20, "Is it a dog?"
    messages = [
        {"role": "system", "content": rules},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}],
        },
    ]
    texts = text_tokens(rules) + text_tokens(question)
    assert 90 < texts < 120
    assert count_tokens(GEMINI, messages) == pytest.approx(texts + 1032, abs=10)


def test_prompt_size_is_a_bound_and_learns():
    picture = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + base64.b64encode(png((640, 480))).decode()},
    }
    messages = [
        {"role": "system", "content": "You are a careful auditor of captions. " * 20},
        {"role": "user", "content": [{"type": "text", "text": "What do you see?"}, picture, picture]},
    ]
    count, prompts = count_tokens("gemini/gemini-2.5-flash", messages), PromptSize()
    assert count <= prompts.bound(count) <= 1.11 * count + 1
    prompts.learn(count, count // 2)
    assert prompts.bound(count) <= 1.11 * count + 1
    prompts.learn(count, count * 3)
    assert prompts.bound(count) == count * 3
