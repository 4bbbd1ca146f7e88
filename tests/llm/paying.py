"""A process that asks many questions at once, and a provider that counts what it bills."""

from __future__ import annotations

import asyncio
import threading
from math import ceil
from pathlib import Path

from ledgers import ledger_in
from provider_server import Question, Wire

from repair_hf.llm.asker import Asker
from repair_hf.llm.cost import count_tokens
from repair_hf.llm.options import RequestOptions
from tests.llm.asking import IN, OUT, PRICED, QUICK, billed, texts

ROOM = 100  # tokens of an answer
WORST = ceil(1.1 * count_tokens(PRICED, texts(0, 1)[0])) * IN + ROOM * OUT  # the most that one of `texts` may cost


class Till:
    """Bills every request at once, and answers a moment later. `changed` is notified of each bill.

    Args:
        factor: What is billed, as a multiple of `WORST`.
    """

    def __init__(self, factor: float = 1.0, seconds: float = 0.02) -> None:
        self.tokens = round((factor * WORST - OUT) / IN)
        self.bill = self.tokens * IN + OUT
        self.seconds = seconds
        self.asked: list[str] = []
        self.changed = threading.Condition()

    @property
    def dollars(self) -> float:
        return len(self.asked) * self.bill

    def __call__(self, question: Question) -> Wire:
        with self.changed:
            self.asked.append(question.messages[0]["content"])
            self.changed.notify_all()
        answer = billed(prompt_tokens=self.tokens, completion_tokens=1)
        return Wire(body=answer.body, delay=self.seconds)

    def wait_for(self, requests: int) -> None:
        """Wait until so many requests were billed."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.asked) >= requests, 60)


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
