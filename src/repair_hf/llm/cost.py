"""What a request costs: list prices in US dollars (from the list that LiteLLM ships), tokens, bills, usage of a run.

Texts are counted by a tokenizer of OpenAI's, which differs from others by a few percent, and images by one rule for
all models but Gemini's, whose count is fixed.
"""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from math import ceil
from pathlib import Path
from typing import Any

from PIL import Image

from repair_hf.llm.ledger import Reply
from repair_hf.llm.ledger_file import query
from repair_hf.llm.provider import load_litellm

TOKENS_PER_IMAGE = 1_290  # of an edited image: Gemini 2.5's; Gemini 3 and OpenAI's medium quality take fewer
IMAGE_TOKENS = {"gemini": 1_120, "world/": 258}  # of an image in a prompt, whatever its size
LONGEST = 1_568  # pixels of a side; larger images are scaled down
PER_MESSAGE = 4  # tokens between messages


@dataclass
class Usage:
    """What one stage and direction has used.

    Args:
        calls: Answers and images that the provider gave in this run; of a ledger, also those that were lost.
        replayed: Answers from an earlier run or an equal request.
        dollars: Price of `calls`, as far as known, and the worst case of lost answers.
        unpriced: How many of `calls` have no known price.
    """

    calls: int = 0
    replayed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0
    unpriced: int = 0

    def add(self, reply: Reply, *, replayed: bool) -> None:
        """Count one answer."""
        if replayed:
            self.replayed += 1
            return
        self.calls += 1
        self.dollars += reply.dollars or 0.0
        self.unpriced += reply.dollars is None
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens


def known_dollars(uses: Iterable[Usage]) -> float | None:
    """Add up what was paid; None if an answer has no known price."""
    return add_up(None if use.unpriced else use.dollars for use in uses)


@dataclass(frozen=True)
class StageCost:
    """What one stage and direction will need; `dollars` is None if no price is known."""

    stage: str
    direction: str
    llm_calls: float
    image_calls: float
    prompt_tokens: float
    completion_tokens: float
    dollars: float | None


def add_stages(stages: Iterable[StageCost]) -> StageCost:
    """Add up stages; the price is None if that of any is unknown."""
    parts = list(stages)
    counts = ("llm_calls", "image_calls", "prompt_tokens", "completion_tokens")
    sums: dict[str, float] = {name: sum(getattr(stage, name) for stage in parts) for name in counts}
    return StageCost("all", "", dollars=add_up(stage.dollars for stage in parts), **sums)


def add_up(dollars: Iterable[float | None]) -> float | None:
    """Return the sum of amounts; None if one is unknown."""
    amounts = list(dollars)
    return None if None in amounts else sum(filter(None, amounts), 0.0)


@cache
def price_per_token(model: str, *, batch: bool = False) -> tuple[float, float] | None:
    """Return US dollars per prompt token and per completion token; None if LiteLLM lists no price.

    The price of the batch API is half of it, unless listed.
    """
    litellm = load_litellm()
    try:
        prices = litellm.get_model_info(model)
    except litellm.exceptions.ModelNotMappedError:
        return None
    listed = prices["input_cost_per_token"], prices["output_cost_per_token"]
    # LiteLLM returns 0 for some models without a price, and for prices listed in tiers. Ollama's models are free.
    is_listed = "input_cost_per_token" in litellm.model_cost.get(prices["key"], {})
    if not any(listed) and not is_listed and prices["litellm_provider"] != "ollama":
        return None
    if not batch:
        return listed
    in_batch = prices.get("input_cost_per_token_batches"), prices.get("output_cost_per_token_batches")
    return (listed[0] / 2, listed[1] / 2) if None in in_batch else in_batch


def price_per_image(model: str) -> float | None:
    """Return the US dollars per generated image, without its prompt; None if LiteLLM lists no price.

    Where it lists a price by image and one by token, the larger one counts: the bill may follow either.
    """
    listed = image_prices(model)
    by_token = TOKENS_PER_IMAGE * (listed.get("output_cost_per_image_token") or 0.0)
    return max(listed.get("output_cost_per_image") or 0.0, by_token) or None


def image_prices(model: str) -> dict[str, Any]:
    """Return what LiteLLM lists of an image model; empty if nothing."""
    prices = load_litellm().model_cost  # seen with litellm 1.106
    return prices.get(model) or prices.get(model.partition("/")[2], {})


def token_bill(
    usage: Any,
    model: str,
    *,
    has_text: bool = True,
    batch: bool = False,
    stated: tuple[float, float] | None = None,
) -> float | None:
    """Return the dollars of an answer with LiteLLM's `usage`; None if its tokens or their price are not known.

    A `stated` price, in dollars per token in and out, comes before the listed one. Without a listed price the cost
    counts first that the provider itself reports, as OpenRouter does.
    """
    litellm, price = load_litellm(), stated or price_per_token(model, batch=batch)
    cost = getattr(usage, "cost", None)
    if (stated is not None or price is None) and isinstance(cost, int | float) and cost >= 0:
        return float(cost)
    if price is None:
        return None
    if not any(price):
        return 0.0
    if usage is None or usage.prompt_tokens <= 0 or (has_text and usage.completion_tokens <= 0):
        return None
    if stated is not None:
        return usage.prompt_tokens * stated[0] + usage.completion_tokens * stated[1]
    if batch:
        return sum(litellm.cost_calculator.batch_cost_calculator(usage, model))
    # by the model that was asked for: LiteLLM's own figure uses the name in the response
    return sum(litellm.cost_per_token(model=model, usage_object=usage))


def image_bill(usage: Any, model: str, stated: tuple[float, float] | None = None) -> float | None:
    """Return the dollars of an edited image with LiteLLM's `usage`; None if its tokens or their price are not known.

    A prompt whose kind is not said counts at the dearer price. What is not image in the answer is text or thought.
    """
    if stated is not None and not any(stated):
        return 0.0
    if usage is None or usage.output_tokens <= 0 or usage.input_tokens < 0:
        return None
    answered = max(usage.output_tokens, usage.total_tokens - usage.input_tokens)
    if stated is not None:
        return usage.input_tokens * stated[0] + answered * stated[1]
    listed = image_prices(model)
    per_image_token = listed.get("output_cost_per_image_token")
    if per_image_token is None and listed.get("output_cost_per_image") is None:
        return None
    text_in = listed.get("input_cost_per_token") or 0.0
    image_in = max(listed.get("input_cost_per_image_token") or 0.0, text_in)
    counts = usage.model_dump(warnings=False)  # some details are objects, and some are not
    texts = (counts["input_tokens_details"] or {}).get("text_tokens") or 0
    dollars = texts * text_in + (usage.input_tokens - texts) * image_in
    if per_image_token is None:
        return dollars + listed["output_cost_per_image"]
    images = (counts.get("output_tokens_details") or {}).get("image_tokens") or usage.output_tokens
    return dollars + images * per_image_token + (answered - images) * (listed.get("output_cost_per_token") or 0.0)


def count_tokens(model: str, messages: Sequence[Mapping[str, Any]]) -> int:
    """Count the tokens of all messages, images included."""
    return PER_MESSAGE * len(messages) + sum(_part_tokens(model, part) for part in all_parts(messages))


@lru_cache(1024)
def text_tokens(text: str) -> int:
    """Count the tokens of a text; cached, because requests share their rules."""
    return load_litellm().token_counter(model="", text=text)  # a model's name could make it download a tokenizer


def patches(width: int, height: int) -> int:
    """Count the tokens of an image of this size in pixels as Claude and Qwen-VL do: one for 28 x 28 pixels.

    A model that counts more is noticed by its first bill, see `Ledger.reserve`.
    """
    scale = min(1.0, LONGEST / max(width, height))
    return ceil(width * scale / 28) * ceil(height * scale / 28)


def _part_tokens(model: str, part: Mapping[str, Any]) -> int:
    if part["type"] == "text":
        return text_tokens(part["text"])
    for name, tokens in IMAGE_TOKENS.items():
        if name in model.lower():
            return tokens
    data = base64.b64decode(part["image_url"]["url"].partition(";base64,")[2])
    with Image.open(io.BytesIO(data)) as image:  # its pixels are not decoded
        return patches(*image.size)


def all_parts(messages: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the parts of messages in the OpenAI chat format, whose content may also be a single text."""
    for message in messages:
        content = message["content"]
        yield from [{"type": "text", "text": content}] if isinstance(content, str) else content


def paid_in(ledger: str | Path, run: str | None = None) -> dict[tuple[str, str], Usage]:
    """Return what a ledger, or one run in it, has paid for answers and edited images, by stage and direction."""
    return {(stage, direction): Usage(*counts) for stage, direction, *counts in query(ledger, _PAID, run)}


def usage_rows(usage: Mapping[tuple[str, str], Usage]) -> list[dict[str, Any]]:
    """Return usages as rows of JSON, ordered by stage and direction."""
    return [
        {"stage": stage, "direction": direction} | asdict(use) for (stage, direction), use in sorted(usage.items())
    ]


def usage_of(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Usage]:
    """Return usages by stage and direction from the rows of `usage_rows`."""
    uses = map(dict, rows)
    return {(use.pop("stage"), use.pop("direction")): Usage(**use) for use in uses}


def merged_usage(usages: Iterable[Mapping[tuple[str, str], Usage]]) -> dict[tuple[str, str], Usage]:
    """Add up usages, by stage and direction."""
    merged: defaultdict[tuple[str, str], Usage] = defaultdict(Usage)
    for place, use in (item for usage in usages for item in usage.items()):
        merged[place] = Usage(*map(sum, zip(vars(merged[place]).values(), vars(use).values(), strict=True)))
    return dict(merged)


def format_dollars(amount: float | None) -> str:
    """Format an amount with two decimals; what they would show as nothing is below a cent."""
    if amount is None:
        return "unknown"
    return "<$0.01" if 0 < amount < 0.005 else f"${amount:,.2f}"


_PAID = """
SELECT stage, direction, COUNT(*), 0, SUM(prompt_tokens), SUM(completion_tokens),
    TOTAL(CASE state WHEN 'lost' THEN COALESCE(dollars, worst) ELSE dollars END),
    SUM(state = 'answered' AND dollars IS NULL)
FROM call WHERE (?1 IS NULL OR run = ?1) AND state IN ('answered', 'lost') GROUP BY stage, direction
"""
