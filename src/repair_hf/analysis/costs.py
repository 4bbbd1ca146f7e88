"""Cost of a synthesis, estimated and paid, as rows of tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from repair_hf.analysis.tables import SIDES
from repair_hf.llm.cost import (
    TOKENS_PER_IMAGE,
    StageCost,
    Usage,
    add_stages,
    add_up,
    format_dollars,
    known_dollars,
    merged_usage,
    price_per_image,
    usage_of,
)
from repair_hf.llm.ledger_file import place_of, query, read_calls
from repair_hf.runtime.files import read_json, read_yaml
from repair_hf.runtime.stage import REMAKE
from repair_hf.synthesis.models import editor_price, find_editor, find_llm, llm_price
from repair_hf.synthesis.options import EditorOptions, LLMOptions

ESTIMATE_HEADS = ("", "", "failures", "LLM calls", "images", "K tokens in", "K out", "dollars")
PAID_HEADS = ("paid", "", "answers", "K tokens in", "K out", "K in all", "dollars")
STAGES = ("audit", "instruct", "edit", "check")

Row = tuple[str | float, ...]


class Item(NamedTuple):
    """What a model answers or makes; `dollars` is None if its price is unknown."""

    number: float
    kind: Literal["answers", "images"]
    model: str
    is_own: bool  # on this machine, or on a server of one's own
    dollars: float | None


def list_prices(llm: LLMOptions, editor: EditorOptions) -> tuple[tuple[float, float] | None, float | None]:
    """Return dollars per token (in, out) and per image: 0 for own models, None for an unknown price."""
    if editor.editor is None:
        return llm_price(llm), 0.0
    if find_editor(editor) != "litellm":
        return llm_price(llm), 0.0
    stated = editor_price(editor, llm)
    return llm_price(llm), price_per_image(editor.editor) if stated is None else TOKENS_PER_IMAGE * stated[1]


def items_of(stages: Sequence[StageCost], llm: LLMOptions, editor: EditorOptions) -> list[Item]:
    """List what an LLM answers and an editor makes."""
    texts = add_stages(stage for stage in stages if not stage.image_calls)
    images = add_stages(stage for stage in stages if stage.image_calls)
    is_own = find_llm(llm) != "litellm" or llm.llm_base_url is not None
    items = [Item(texts.llm_calls, "answers", llm.llm, is_own, texts.dollars)]
    if editor.editor is not None:
        is_own = find_editor(editor) != "litellm" or editor.editor_base_url is not None
        items.append(Item(images.image_calls, "images", editor.editor, is_own, images.dollars))
    return items


def calls_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the calls of a folder of records, from the ledger that its options name."""
    file = folder / "config.yaml"
    options = read_yaml(file, remedy=REMAKE) if file.is_file() else {}
    yield from read_calls(*place_of(folder, options.get("ledger")))


def paid_for(folders: Iterable[Path]) -> dict[tuple[str, str], Usage]:
    """Return what folders of records have paid, by stage and direction, as their summaries note it."""
    files = [folder / "summary.json" for folder in folders]
    return merged_usage(usage_of(read_json(file).get("paid", ())) for file in files if file.is_file())


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
    by_model: dict[tuple[str, str, bool], list[Item]] = {}
    for item in items:
        by_model.setdefault((item.kind, item.model, item.is_own), []).append(item)
    parts = [
        f"{sum(item.number for item in same):,.0f} {kind} by {model} {format_dollars(_sum(same))}"
        + (" and the time of your machine" if is_own else "")
        for (kind, model, is_own), same in by_model.items()
    ]
    return f"Whole price: {format_dollars(_sum(items))}{': ' * bool(parts)}{', '.join(parts)}."


def describe_lost(ledger: Path, run: str) -> str:
    """Describe the requests of a run whose answers did not arrive; empty if there are none."""
    wanted = "SELECT COUNT(*), SUM(worst = 0), TOTAL(worst) FROM call WHERE run = ? AND state = 'lost'"
    calls, unpriced, dollars = next(iter(query(ledger, wanted, run)), (0, 0, 0.0))
    if not calls:
        return ""
    if unpriced:
        return f"{calls:,} requests have no answer, such as those in flight when a run was killed. They may be billed."
    return (
        f"{format_dollars(dollars)} of it is assumed: the highest price of {calls:,} requests without an answer, such "
        "as those in flight when a run was killed. The bill may be lower."
    )


def estimated(cost: StageCost) -> tuple[str, str, str]:
    """Format thousands of tokens in and out, and dollars."""
    return _thousands(cost.prompt_tokens), _thousands(cost.completion_tokens), format_dollars(cost.dollars)


def _sum(items: Sequence[Item]) -> float | None:
    return add_up(item.dollars for item in items)


def _paid(uses: Sequence[Usage]) -> tuple[int, str, str, str, str]:
    tokens_in, tokens_out = (sum(vars(use)[name] for use in uses) for name in ("prompt_tokens", "completion_tokens"))
    counts = _thousands(tokens_in), _thousands(tokens_out), _thousands(tokens_in + tokens_out)
    return sum(use.calls for use in uses), *counts, format_dollars(known_dollars(uses))


def _thousands(tokens: float) -> str:
    return f"{tokens / 1000:,.1f}"
