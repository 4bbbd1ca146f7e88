"""Cost of a synthesis, estimated and paid, as rows of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from repair_hf.analysis.tables import SIDES
from repair_hf.llm.calls import format_dollars
from repair_hf.llm.cost import StageCost, Usage, add_stages, add_up, known_dollars, price_per_image, price_per_token
from repair_hf.synthesis.models import find_editor, find_llm
from repair_hf.synthesis.options import EditorOptions, LLMOptions

ESTIMATE_HEADS = ("", "", "failures", "LLM calls", "images", "K tokens in", "K out", "dollars")
PAID_HEADS = ("paid", "", "answers", "K tokens in", "K out", "K in all", "dollars")
STAGES = ("audit", "instruct", "edit")

Row = tuple[str | float, ...]


class Item(NamedTuple):
    """What a model answers or makes; `dollars` is None if its price is unknown."""

    number: float
    kind: Literal["answers", "images"]
    model: str
    place: str  # `litellm` or on this machine
    dollars: float | None


def list_prices(llm: LLMOptions, editor: EditorOptions) -> tuple[tuple[float, float] | None, float | None]:
    """Return dollars per token (in, out) and per image: 0 for local models, None for an unknown price."""
    place, name = find_llm(llm)
    per_token = price_per_token(name, batch=llm.batch) if place == "litellm" else (0.0, 0.0)
    if editor.editor is None:
        return per_token, 0.0
    place, name = find_editor(editor)
    return per_token, price_per_image(name) if place == "litellm" else 0.0


def items_of(stages: Sequence[StageCost], llm: LLMOptions, editor: EditorOptions) -> list[Item]:
    """List what an LLM answers and an editor makes."""
    texts = add_stages(stage for stage in stages if not stage.image_calls)
    images = add_stages(stage for stage in stages if stage.image_calls)
    items = [Item(texts.llm_calls, "answers", llm.llm, find_llm(llm)[0], texts.dollars)]
    if editor.editor is not None:
        items.append(Item(images.image_calls, "images", editor.editor, find_editor(editor)[0], images.dollars))
    return items


def estimate_rows(stages: Sequence[StageCost], mined: Mapping[str, int]) -> list[Row]:
    """Build a row per stage and direction of the `mined` triplets, and one for the sum."""
    rows = [
        (stage.stage, stage.direction, mined[stage.direction], stage.llm_calls, stage.image_calls, *estimated(stage))
        for stage in stages
        if mined[stage.direction]
    ]
    failures, total = sum(mined[direction] for direction in SIDES), add_stages(stages)
    return [*rows, ("all", "", failures, total.llm_calls, total.image_calls, *estimated(total))]


def paid_rows(paid: Mapping[tuple[str, str], Usage]) -> list[Row]:
    """Build rows as in the paper's table: each stage, each direction in all, both directions; tokens in thousands."""
    rows: list[Row] = []
    for direction in SIDES:
        found = [(stage, paid[stage, direction]) for stage in STAGES if (stage, direction) in paid]
        rows += [(stage, direction, *_paid([use])) for stage, use in found]
        if found:
            rows.append(("all", direction, *_paid([use for _, use in found])))
    return [*rows, ("all", "both", *_paid(list(paid.values())))]


def describe_paid(paid: Mapping[tuple[str, str], Usage]) -> str:
    """Describe what was paid in all."""
    if not paid:
        return "Unknown: there is no ledger of payments beside these records."
    uses = list(paid.values())
    answers, unpriced = sum(use.calls for use in uses), sum(use.unpriced for use in uses)
    tokens = _thousands(sum(use.prompt_tokens + use.completion_tokens for use in uses))
    if unpriced:
        return f"Unknown: {unpriced:,} of {answers:,} answers have no list price. They used {tokens} K tokens."
    return f"{format_dollars(known_dollars(uses))} for {answers:,} answers of {tokens} K tokens, at list prices."


def whole_price(items: Sequence[Item]) -> str:
    """Describe the price of a synthesis or a study: items of one kind and model are added up."""
    found: dict[tuple[str, str, str], tuple[float, list[float | None]]] = {}
    for item in items:
        count, amounts = found.get(key := (item.kind, item.model, item.place), (0.0, []))
        found[key] = count + item.number, [*amounts, item.dollars]
    each = [
        f"{count:,.0f} {kind} by {model} {format_dollars(add_up(amounts))}"
        + ("" if place == "litellm" else " and the time of your machine")
        for (kind, model, place), (count, amounts) in found.items()
    ]
    return (
        f"Whole price: {format_dollars(add_up(item.dollars for item in items))}{': ' * bool(each)}{', '.join(each)}."
    )


def estimated(cost: StageCost) -> tuple[str, str, str]:
    """Format thousands of tokens in and out, and dollars."""
    return _thousands(cost.prompt_tokens), _thousands(cost.completion_tokens), format_dollars(cost.dollars)


def _paid(uses: Sequence[Usage]) -> tuple[int, str, str, str, str]:
    tokens_in, tokens_out = (sum(vars(use)[name] for use in uses) for name in ("prompt_tokens", "completion_tokens"))
    counts = _thousands(tokens_in), _thousands(tokens_out), _thousands(tokens_in + tokens_out)
    return sum(use.calls for use in uses), *counts, format_dollars(known_dollars(uses))


def _thousands(tokens: float) -> str:
    return f"{tokens / 1000:,.1f}"
