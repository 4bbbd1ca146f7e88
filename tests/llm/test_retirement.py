"""The last day of a model is that of its own provider."""

import datetime

import pytest

from repair_hf.llm.retirement import retirement_date


@pytest.mark.parametrize(
    ("model", "date"),
    [
        ("openai/gpt-image-1", "2026-10-23"),
        ("gpt-image-1", "2026-10-23"),
        ("vertex_ai/gemini-3.5-flash-lite", "2027-07-21"),
        ("gemini/gemini-3.5-flash-lite", None),  # LiteLLM knows only that of Vertex
        ("openai/a-model-of-my-own", None),
        ("hosted_vllm/Qwen/Qwen2.5-VL-7B-Instruct", None),
    ],
)
def test_the_last_day_of_a_model(model, date):
    assert retirement_date(model) == (date and datetime.date.fromisoformat(date))
