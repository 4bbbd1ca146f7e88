"""Estimate the calls, tokens and dollars of a synthesis before running it.

A sample of the failures goes through the code of the real run, to a provider that only counts and gives a typical
answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset

from repair_hf.llm.asker import Asker
from repair_hf.llm.cost import StageCost, Usage, add_up, count_tokens, text_tokens
from repair_hf.llm.keys import ImageURL
from repair_hf.llm.ledger import Ledger, Reply
from repair_hf.llm.prompts import SHIPPED, Prompts
from repair_hf.llm.provider import Provider
from repair_hf.records.columns import DIRECTIONS
from repair_hf.synthesis.checks import ALL, ask_fit
from repair_hf.synthesis.loop import run_to_end, work_through
from repair_hf.synthesis.options import RepairOptions
from repair_hf.synthesis.record_builder import RecordBuilder, RepairTask
from repair_hf.synthesis.steps import repair

CHECK = "check"  # stage of the cost of checking edits
QUERIES = 24  # sampled per direction

# About as long as the answers of a model that does not think aloud first.
REASON = "The caption says that a man holds a red umbrella, while the image shows a woman with a blue one."
CAPTION = "a woman with a blue umbrella waits at the corner of a busy street"
INSTRUCTION = (
    "The caption says that the umbrella is red, while the image shows a blue one held by the "
    "woman. Therefore, replace 'a red umbrella' with 'a blue umbrella'."
)
ANSWER: dict[str, Any] = {
    "gt_reason": REASON,
    "gt_valid": True,
    "fp_reason": REASON,
    "fp_too_similar": False,
    "reason": REASON,
    "fits": True,
    "error_types": ["Object"],
    "edit_instruction": INSTRUCTION,
    "answer": CAPTION,
    "kind": "Attribute",
}


class Rehearsal(NamedTuple):
    """What a sample of failures asks, by stage and direction, and how many it holds of each direction."""

    asked: Mapping[tuple[str, str], Usage]
    failures: Counter[str]


def estimate_run(
    rehearsal: Rehearsal,
    mined: Mapping[str, int],
    options: RepairOptions,
    *,
    price: tuple[float, float] | None,
    image_price: float | None,
) -> list[StageCost]:
    """Estimate by stage and direction what so many failures take at most, if they are like those that were rehearsed.

    Every failure counts as passing the audit. Prices are in US dollars, per prompt token and answered token and per
    edited image; None if unknown.
    """
    stages = []
    for direction in sorted(DIRECTIONS):
        count, rehearsed = mined.get(direction, 0), rehearsal.failures[direction]
        for stage in ("audit", "instruct", "edit"):
            images = count * options.candidates if (stage, direction) == ("edit", "t2i") else 0
            use = rehearsal.asked.get((stage, direction), Usage())
            # Equal questions count as well: typical answers make later questions equal that would differ.
            calls = round(count * (use.calls + use.replayed) / rehearsed) if rehearsed else 0
            stages.append(stage_cost(stage, direction, use, calls, images, price=price, image_price=image_price))
        if options.check_edits:
            use = rehearsal.asked.get((CHECK, direction), Usage())
            calls = count * options.candidates if options.check_edits == ALL else _share(options, mined, direction)
            stages.append(stage_cost(CHECK, direction, use, calls, 0, price=price, image_price=image_price))
    return stages


def _share(options: RepairOptions, mined: Mapping[str, int], direction: str) -> int:
    """Return how many of the edits that are checked are of a direction."""
    failures = sum(mined.values())
    return round(min(int(options.check_edits), failures) * mined.get(direction, 0) / max(failures, 1))


def stage_cost(
    stage: str,
    direction: str,
    use: Usage,
    calls: int,
    images: int,
    *,
    price: tuple[float, float] | None,
    image_price: float | None,
) -> StageCost:
    """Return what calls and images of a stage take; a call has as many tokens as those that were rehearsed (`use`)."""
    answered = max(use.calls, 1)
    tokens = calls * use.prompt_tokens / answered, calls * use.completion_tokens / answered
    amounts, prices = (*tokens, images), (*(price or (None, None)), image_price)
    parts = [(amount, unit) for amount, unit in zip(amounts, prices, strict=True) if amount]
    dollars = add_up(unit and amount * unit for amount, unit in parts)
    return StageCost(stage, direction, calls, images, *tokens, dollars)


def rehearse(
    builder: RecordBuilder, failures: Dataset, model: str, options: RepairOptions, prompts: Prompts = SHIPPED
) -> Rehearsal:
    """Go through a sample of failures without sending anything, and count what would be asked."""
    queues = [_sample(builder, failures, direction) for direction in DIRECTIONS]
    candidates: Any = NoImages()
    with Ledger() as ledger:
        asker = Asker("rehearsal", ledger, provider=counting(model), prompts=prompts)

        async def work(task: RepairTask) -> None:
            await repair(task, asker, candidates, builder, options)
            if task.reason is None and options.check_edits:
                await ask_fit(task, _typical_edit(task, builder), asker, builder)

        run_to_end(work_through(asker, queues, work))
    tasks = [task for queue in queues for task in queue if task.reason != "unreadable_image"]
    return Rehearsal(asker.usage, Counter(task.direction for task in tasks))


def _typical_edit(task: RepairTask, builder: RecordBuilder) -> str:
    """A caption, or the false positive under another name: a question about the same image has been counted."""
    if task.direction == "i2t":
        return CAPTION
    image: Any = builder.shown(task, "fp")["fp"]
    return ImageURL(f"edit of {image}", lambda: image.url)


class NoImages:
    """Stands in for `Candidates`, and edits no image."""

    async def make(self, fp: int, instruction: str) -> list[Path]:
        return [Path()]


def _sample(builder: RecordBuilder, failures: Dataset, direction: str) -> list[RepairTask]:
    """All failures of some queries of a direction, spread over the whole."""
    tasks = list(builder.tasks(failures, direction))
    queries = list(dict.fromkeys(task.at["q"] for task in tasks))
    sampled = set(queries[:: -(-len(queries) // QUERIES) or 1])
    return [task for task in tasks if task.at["q"] in sampled]


def counting(model: str) -> Provider:
    """Return a provider that counts tokens, and answers without a model."""

    async def reply(request: Mapping[str, Any]) -> Reply:
        text = _typical_answer(request)
        tokens = count_tokens(model, request["messages"]), text_tokens(text)
        return Reply(text, "stop", *tokens, dollars=0.0, answered_by=model)

    return reply


def _typical_answer(request: Mapping[str, Any]) -> str:
    """An answer of usual length that keeps the failure, with the requested fields."""
    fields = request["response_format"]["json_schema"]["schema"]["properties"]
    return json.dumps({name: ANSWER[name] for name in fields})
