"""The budget: ceilings that no run passes.

In:  dollars and calls at most; before each request what it may cost at worst, after it what it did cost.
Out: the request's turn; or `BudgetSpent`, which stops the run, where together with all that is in flight a ceiling could be passed.

The ceilings hold for a folder, over all runs of the command: what its journal has paid already is counted first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from repair_hf.llm.failures import PassingFailure
from repair_hf.llm.provider import Reply
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import RunStopped

# What a prompt may be billed as, until the first bill shows how this provider counts.
BYTES_PER_TOKEN = 3  # of text; in English more of them make a token
IMAGE_TOKENS = (
    1_600  # a picture of about a megapixel; most providers bill less, and the first bill tells of those that bill more
)
MESSAGE_TOKENS = 16


class BudgetSpent(RunStopped):
    """A ceiling is reached; a higher one lets the same command go on."""


@dataclass
class Hold:
    """What is set aside for one request; `paid` is what it did cost, or may have cost, and None as long as nothing came of it."""

    paid: float | None = None

    async def settle(
        self, reply: Awaitable[Reply], worst: Callable[[], float], lose: Callable[[float | None], None]
    ) -> Reply:
        """The reply with its bill; where none comes with it, or no reply comes at all, the most that it may be is taken as paid.

        Args:
            reply: Of one attempt.
            worst: US dollars that it may cost; 0 where no price is known.
            lose: Told if the answer was lost though it may be billed: what it cost at most, None without a price.
        """
        try:
            found = await reply
        except PassingFailure as failure:
            if failure.may_be_billed:
                self.paid = worst()
                lose(self.paid or None)
            raise
        except asyncio.CancelledError:  # given up while it was with the provider, who may answer it all the same
            self.paid = worst()
            lose(self.paid or None)
            raise
        if found.dollars is None:
            found = replace(found, at_most=worst())
        self.paid = found.at_most if found.dollars is None else found.dollars
        return found


class Budget:
    """Dollars and calls that may not be passed.

    Args:
        max_usd: Ceiling in US dollars; None for no ceiling.
        max_calls: Ceiling on the LLM's answers; None for no ceiling. A request that fails is no call, unless it may be billed.
        processes: How many processes share the ceilings, each of them holding to its part.
    """

    def __init__(self, max_usd: float | None = None, max_calls: int | None = None, *, processes: int = 1) -> None:
        for name, ceiling in (("max_usd", max_usd), ("max_calls", max_calls)):
            if ceiling is not None and ceiling < 0:
                raise UserError(f"`{name}` must not be negative, got {ceiling}.")
        self.max_usd, self.max_calls, self.processes = max_usd, max_calls, processes
        self._earlier, self._paid, self._held = _Sum(), _Sum(), _Sum()
        self._under_way = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._has_seen_a_bill = False

    def count(self, dollars: float, calls: int = 0) -> None:
        """Count what earlier runs of this folder have paid. Call it before the first request."""
        self._earlier.add(dollars, calls)

    @asynccontextmanager
    async def hold(self, worst: Callable[[], float], *, calls: int = 1) -> AsyncIterator[Hold]:
        """Set aside what a request may cost, as long as it is under way. Whoever sends it sets `paid` to what it did cost.

        Where there is enough but for what others have set aside, this waits until one of them has its bill.

        Args:
            worst: US dollars that it may cost; asked anew after a wait, for bills teach.
            calls: 1 for a request that `max_calls` counts, else 0.

        Raises:
            BudgetSpent: If a ceiling could be passed.
        """
        while self._must_wait(worst(), calls):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        dollars = worst()
        self.commit(dollars, calls=calls)
        self._under_way += 1
        hold = Hold()
        try:
            yield hold
        finally:
            self._under_way -= 1
            self._held.add(-dollars, -calls)
            if hold.paid is not None:
                self._paid.add(hold.paid, calls)
                self._has_seen_a_bill = True
            waiting, self._waiting = self._waiting, []
            for turn in waiting:
                if not turn.done():  # nobody waits for a turn that was cancelled
                    turn.set_result(None)

    def commit(self, dollars: float, *, calls: int = 1) -> None:
        """Set aside, until the end of this run, what a request may cost.

        Raises:
            BudgetSpent: If a ceiling could be passed.
        """
        if shortage := self._shortage(dollars, calls):
            raise BudgetSpent(
                f"{shortage} Every answer so far is kept; with a higher ceiling the same command goes on."
            )
        self._held.add(dollars, calls)

    def _must_wait(self, dollars: float, calls: int) -> bool:
        """The first request that costs anything goes alone: its bill shows how far off the bounds of the others may be."""
        is_first = self.max_usd is not None and dollars > 0 and not self._has_seen_a_bill
        return self._under_way > 0 and (is_first or self._shortage(dollars, calls) is not None)

    def _shortage(self, dollars: float, calls: int) -> str | None:
        """Which ceiling one more request could pass, in words."""
        share = f" (for each of {self.processes} processes, its part of it)" if self.processes > 1 else ""
        if self.max_usd is not None:
            left = (self.max_usd - self._earlier.dollars) / self.processes - self._paid.dollars
            if self._held.dollars + dollars > left:
                paid = self._earlier.dollars + self._paid.dollars
                return f"--max-usd {self.max_usd:g}{share} is spent: ${paid:.4f} are paid, and the next request may cost ${dollars:.4f}."
        if self.max_calls is not None:
            left = (self.max_calls - self._earlier.calls) // self.processes - self._paid.calls
            if self._held.calls + calls > left:
                made = self._earlier.calls + self._paid.calls
                return f"--max-calls {self.max_calls}{share} is spent: {made} answers are paid."
        return None


@dataclass
class _Sum:
    dollars: float = 0.0
    calls: int = 0

    def add(self, dollars: float, calls: int) -> None:
        self.dollars += dollars
        self.calls += calls


class PromptSize:
    """How many tokens a prompt may be billed as: a guess at first, corrected upwards by every bill that passes it."""

    def __init__(self) -> None:
        self._factor = 1.0

    def bound(self, guess: int) -> int:
        """More tokens than a prompt of such a guess should be billed as."""
        return round(self._factor * guess)

    def learn(self, guess: int, billed: int) -> None:
        """Take note of what the provider counted."""
        if guess:  # 0 where none is on record
            self._factor = max(self._factor, billed / guess)


def guess_tokens(messages: list[dict[str, Any]]) -> int:
    """Tokens of these messages, in some microseconds; `tokens.count_tokens` is as right, and as slow, as can be."""
    tokens = 0
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        texts = [part["text"] for part in parts if part["type"] == "text"]
        tokens += MESSAGE_TOKENS + IMAGE_TOKENS * (len(parts) - len(texts))
        tokens += sum(len(text.encode()) // BYTES_PER_TOKEN for text in texts)
    return tokens
