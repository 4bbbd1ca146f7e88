"""What several tests of this room ask: one question, or many at once, of a provider that counts what it bills."""

from __future__ import annotations

import asyncio
from math import ceil
from pathlib import Path

from ledgers import ledger_in
from provider_server import Question, Wire, said
from pydantic import BaseModel, ConfigDict

from repair_hf.llm.asker import Asker
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.paid_model import Retries

QUESTION = [{"role": "user", "content": "Does the caption fit? Reply with one JSON object."}]
GOOD = '{"valid": true, "reason": "it fits"}'
QUICK = Retries(attempts=3, first_wait=0.01, longest_wait=0.02)
MODELS = {"openai": "openai/gpt-4o-mini", "gemini": "gemini/gemini-2.5-flash"}
PRICED = MODELS["openai"]
IN, OUT = 0.15e-6, 0.6e-6  # its list price per token
BILLS = {"openai": 1000 * IN + 100 * OUT, "gemini": 1000 * 0.3e-6 + 100 * 2.5e-6}  # of an answer of the server


class Verdict(BaseModel):
    model_config = ConfigDict(strict=True)

    valid: bool
    reason: str


def texts(first: int, last: int) -> list[list[dict]]:
    """Questions that differ in their number."""
    return [[{"role": "user", "content": f"question {number}"}] for number in range(first, last)]


def billed(**usage: int) -> Wire:
    """A good answer that is billed in another way; without arguments, not at all."""
    body = said("openai", "yes")
    body["usage"] = body["usage"] | usage if usage else None
    return Wire(body=body)


ROOM = 100  # tokens of an answer
TOKENS = 7  # of one of `texts`: counted in `test_cost`, as no other file needs LiteLLM where it is collected
WORST = ceil(1.1 * TOKENS) * IN + ROOM * OUT  # the most that one of `texts` may cost


class Till:
    """Bills every request at once, and answers a moment later.

    Args:
        factor: What is billed, as a multiple of `WORST`.
    """

    def __init__(self, factor: float = 1.0) -> None:
        self.tokens = round((factor * WORST - OUT) / IN)
        self.bill = self.tokens * IN + OUT
        self.asked: list[str] = []

    @property
    def dollars(self) -> float:
        return len(self.asked) * self.bill

    def __call__(self, question: Question) -> Wire:
        self.asked.append(question.messages[0]["content"])
        return Wire(body=billed(prompt_tokens=self.tokens, completion_tokens=1).body, delay=0.02)


def ask_all(
    folder: Path,
    url: str,
    questions: int,
    *,
    max_usd: float | None = None,
    max_calls: int | None = None,
    concurrency: int = 64,
) -> list:
    """Ask questions all at once; return what came of each."""

    async def main() -> list:
        with ledger_in(folder, max_usd, max_calls) as ledger:
            options = RequestOptions(concurrency=concurrency)
            asker = Asker(PRICED, ledger, base_url=url, options=options, retries=QUICK)
            asked = (
                asker.ask(question, stage="audit", direction="i2t", max_tokens=ROOM)
                for question in texts(0, questions)
            )
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            await asker.drain()
            return outcomes

    return asyncio.run(main())


def ask_in_child(folder: Path, url: str, questions: int, ceilings: dict) -> int:
    """As `ask_all`, for a process of its own."""
    ask_all(folder, url, questions, **ceilings)
    return 0
