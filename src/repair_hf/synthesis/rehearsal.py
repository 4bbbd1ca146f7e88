"""A rehearsal: what a synthesis will ask, counted without asking.

In:  failures, their pairs, and how they are to be repaired.
Out: an `Estimate` of calls, tokens and dollars per stage and direction.

Some failures go through the very code that asks, to a provider that only counts and gives a typical answer. What a run in the same
folder has measured takes the place of what was counted: tokens per call, and the share of failures that passes the audit.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repair_hf.llm.client import ChatModel
from repair_hf.llm.cost import Estimate, StageCost, Usage
from repair_hf.llm.journal import Journal
from repair_hf.llm.provider import Provider, Reply
from repair_hf.llm.tokens import count_tokens, text_tokens
from repair_hf.pairs.dataset import Pairs
from repair_hf.records.columns import DIRECTIONS
from repair_hf.synthesis.audit import audit, audit_group
from repair_hf.synthesis.captions import edit_caption
from repair_hf.synthesis.instruct import instruct
from repair_hf.synthesis.sources import SourceImages, UnreadableImage

QUERIES = 24  # rehearsed in each direction
ENOUGH = 20  # answers that make a measurement

# About as long as what models write who do not think aloud before it.
REASON = "The caption says that a man holds a red umbrella, while the image shows a woman with a blue one."
INSTRUCTION = (
    "[Attribute Error]: The caption says that the umbrella is red, while the image shows a blue one held by the woman. "
    "Therefore, replace 'a red umbrella' with 'a blue umbrella'."
)


@dataclass(frozen=True)
class Protocol:
    """How failures are repaired, as far as it decides what is asked.

    Args:
        model: LLM, by whose provider's rules images are counted.
        candidates: M.
        audited: Whether failures are audited first.
        attach_image: Whether the query image is shown to the editor of a caption.
        grouped: Whether the false positives of an image are audited in one call.
        together: Whether the M captions are asked for in one request.
        image_side: Longest side of the images that are sent.
    """

    model: str
    candidates: int = 3
    audited: bool = True
    attach_image: bool = False
    grouped: bool = False
    together: bool = False
    image_side: int = 1024


def estimate_run(
    pairs: Pairs,
    failures: Sequence[Mapping[str, Any]],
    protocol: Protocol,
    *,
    price: tuple[float, float] | None,
    image_price: float | None,
    measured: Mapping[tuple[str, str], Usage] | None = None,
) -> Estimate:
    """Estimate what a synthesis will take. Without a measurement every failure counts as one that passes the audit.

    Args:
        pairs: What the failures were mined from.
        failures: Rows of `mine_false_positives`.
        protocol: How they are to be repaired.
        price: US dollars per prompt token and per answered token; None where it is not known.
        image_price: US dollars per edited image; None where it is not known.
        measured: What was answered in the same folder before, by (stage, direction).
    """
    mined = Counter(row["direction"] for row in failures)
    rehearsed, triplets = _rehearse(pairs, failures, protocol)
    measured = {place: use for place, use in (measured or {}).items() if use.calls >= ENOUGH}
    stages = []
    for direction in sorted(DIRECTIONS):
        count = mined[direction]
        kept = round(count * _share_kept(direction, measured, rehearsed, triplets))
        for stage in ("audit", "instruct", "edit"):
            reached = count if stage == "audit" else kept
            images = kept * protocol.candidates if (stage, direction) == ("edit", "t2i") else 0
            use = rehearsed.get((stage, direction), Usage())
            calls = round(reached * _asked(use) / triplets[direction]) if triplets[direction] else 0
            typical = measured.get((stage, direction), use)
            answered = max(typical.calls, 1)
            tokens = calls * typical.prompt_tokens / answered, calls * typical.completion_tokens / answered
            dollars = _sum(_price(tokens, price), _price((images,), None if image_price is None else (image_price,)))
            stages.append(StageCost(stage, direction, calls, images, *tokens, dollars))
    return Estimate(tuple(stages))


def _asked(use: Usage) -> int:
    """Equal questions count: the rehearsed answers are all alike, and make questions alike that would not be."""
    return use.calls + use.replayed


def _share_kept(
    direction: str,
    measured: Mapping[tuple[str, str], Usage],
    rehearsed: Mapping[tuple[str, str], Usage],
    triplets: Mapping[str, int],
) -> float:
    """By how many audits an earlier run made, and how many instructions it asked for."""
    places = ("audit", direction), ("instruct", direction)
    # nothing may be mined, or can be shown, or is audited
    if not measured.keys() >= set(places) or places[0] not in rehearsed:
        return 1.0
    audited = measured["audit", direction].calls * triplets[direction] / _asked(rehearsed["audit", direction])
    return min(1.0, measured["instruct", direction].calls / audited)


def _price(amounts: tuple[float, ...], prices: tuple[float, ...] | None) -> float | None:
    if not any(amounts):
        return 0.0
    return None if prices is None else sum(amount * price for amount, price in zip(amounts, prices, strict=True))


def _sum(*dollars: float | None) -> float | None:
    return None if None in dollars else sum(dollars)


def _rehearse(
    pairs: Pairs, failures: Sequence[Mapping[str, Any]], protocol: Protocol
) -> tuple[dict[tuple[str, str], Usage], Counter[str]]:
    """What was asked by stage and direction, and for how many failures of each direction."""
    triplets: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, Journal(Path(folder) / "journal.jsonl") as journal:
        chat = ChatModel("rehearsal", journal=journal, provider=_counting(protocol.model))

        async def ask_all() -> None:
            cases = _Cases(pairs, protocol, chat)
            for direction in DIRECTIONS:
                for group in _some_queries([row for row in failures if row["direction"] == direction]):
                    with suppress(UnreadableImage):
                        await cases.ask(direction, group)
                        triplets[direction] += len(group)

        asyncio.run(ask_all())
    return chat.usage, triplets


class _Cases:
    """Asks all that is to be asked of the failures of one query."""

    def __init__(self, pairs: Pairs, protocol: Protocol, chat: ChatModel) -> None:
        self.pairs, self.protocol, self.chat = pairs, protocol, chat
        self.sources = SourceImages(pairs.images, longest_side=protocol.image_side)

    async def ask(self, direction: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if direction == "t2i":
            await self._ask_t2i(rows)
        else:
            await self._ask_i2t(rows)

    async def _ask_t2i(self, rows: Sequence[Mapping[str, Any]]) -> None:
        q = self._caption(rows[0]["q"])
        gt = self.sources.url(int(self.pairs.caption_image[rows[0]["q"]]))
        for fp in (self.sources.url(row["fp"]) for row in rows):
            if self.protocol.audited:
                await audit(self.chat, "t2i", q=q, gt=gt, fp=fp)
            await instruct(self.chat, "t2i", q=q, fp=fp)

    async def _ask_i2t(self, rows: Sequence[Mapping[str, Any]]) -> None:
        q, gt = self.sources.url(rows[0]["q"]), self._caption(self.pairs.captions_of(rows[0]["q"])[0])
        fps = [self._caption(row["fp"]) for row in rows]
        if self.protocol.audited and self.protocol.grouped and len(fps) > 1:
            await audit_group(self.chat, q=q, gt=gt, fps=fps)
        elif self.protocol.audited:
            for fp in fps:
                await audit(self.chat, "i2t", q=q, gt=gt, fp=fp)
        for fp in fps:
            instruction = await instruct(self.chat, "i2t", q=q, fp=fp)
            await edit_caption(
                self.chat,
                fp,
                instruction,
                candidates=self.protocol.candidates,
                seed=0,
                image=q if self.protocol.attach_image else None,
                together=self.protocol.together,
            )

    def _caption(self, index: int) -> str:
        return self.pairs.captions[int(index)]["caption"]


def _some_queries(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The failures of some queries, from all parts of the whole."""
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["q"], []).append(row)
    queries = list(groups)
    some = queries[:: -(-len(queries) // QUERIES) or 1]
    return [groups[q] for q in some]


def _counting(model: str) -> Provider:
    async def reply(request: Mapping[str, Any]) -> Reply:
        text, samples = _typical_answer(request), request.get("n", 1)
        return Reply(
            text=text,
            finish="stop",
            prompt_tokens=count_tokens(model, request["messages"]),
            completion_tokens=samples * text_tokens(text),
            dollars=0.0,
            answered_by=model,
            others=((text, "stop"),) * (samples - 1),
        )

    return reply


def _typical_answer(request: Mapping[str, Any]) -> str:
    """An answer of usual length that passes for a kept failure: by the schema that was asked for, else a caption."""
    if "response_format" not in request:
        return "a woman with a blue umbrella waits at the corner of a busy street"
    schema = request["response_format"]["json_schema"]["schema"]
    return json.dumps(_fill(schema, schema.get("$defs", {})))


def _fill(schema: Mapping[str, Any], defs: Mapping[str, Any], name: str = "") -> Any:
    if "$ref" in schema:
        return _fill(defs[schema["$ref"].rpartition("/")[2]], defs, name)
    if schema["type"] == "object":
        return {name: _fill(part, defs, name) for name, part in schema["properties"].items()}
    if schema["type"] == "boolean":
        return name == "gt_valid"
    return INSTRUCTION if name == "edit_instruction" else REASON
