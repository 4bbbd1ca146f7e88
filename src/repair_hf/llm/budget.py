"""Ceilings in dollars and calls that no run exceeds.

Before each request its worst case is set aside, together with that of all requests in flight. `BudgetSpent` stops the
run if a ceiling could be exceeded. Ceilings hold for a folder over all runs: what its journal has paid already is
counted first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from repair_hf.llm.failures import PassingFailure
from repair_hf.llm.provider import Reply
from repair_hf.runtime.run_folder import RunStopped


class BudgetSpent(RunStopped):
    """A ceiling is reached; with a higher one the same command goes on."""


@dataclass
class Hold:
    """Money set aside for one request; `paid` is what it cost, or may have cost, and None until that is known."""

    paid: float | None = None

    async def settle(
        self, reply: Awaitable[Reply], worst: Callable[[], float], lose: Callable[[float | None], None]
    ) -> Reply:
        """Wait for the reply and note its bill. Without a bill, or without a reply, the worst case counts as paid.

        `lose` gets the worst case of an answer that was lost but may be billed; None without a price.
        """
        try:
            received = await reply
        except (PassingFailure, asyncio.CancelledError) as failure:  # a cancelled request may still be answered
            if not isinstance(failure, PassingFailure) or failure.may_be_billed:
                self.paid = worst()
                lose(self.paid or None)
            raise
        if received.dollars is None:
            received = replace(received, at_most=worst())
        self.paid = received.at_most if received.dollars is None else received.dollars
        return received


class Budget:
    """Ceilings in dollars and calls.

    Args:
        max_usd: Ceiling in US dollars; None for no ceiling.
        max_calls: Ceiling on the LLM's answers; None for no ceiling. A failed request counts only if it may be billed.
        processes: How many processes share the ceilings; each keeps to its part.
    """

    def __init__(self, max_usd: float | None = None, max_calls: int | None = None, *, processes: int = 1) -> None:
        self.max_usd, self.max_calls, self.processes = max_usd, max_calls, processes
        self._earlier, self._paid, self._held = _Sum(), _Sum(), _Sum()
        self._under_way = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._has_seen_a_bill = False

    def count(self, dollars: float, calls: int = 0) -> None:
        """Count what earlier runs in this folder have paid. Call it before the first request."""
        self._earlier.add(dollars, calls)

    @asynccontextmanager
    async def hold(self, worst: Callable[[], float], *, calls: int = 1) -> AsyncIterator[Hold]:
        """Set aside the worst case of a request while it is in flight, or raise `BudgetSpent`.

        If only what other requests have set aside is missing, wait until one of them has its bill; `worst` is then
        called again, because bills correct it. `calls` is 0 for a request that `max_calls` does not count.
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
                if not turn.done():  # a cancelled turn has no waiter
                    turn.set_result(None)

    def commit(self, dollars: float, *, calls: int = 1) -> None:
        """Set aside the worst case of a request until the end of this run, or raise `BudgetSpent`."""
        if shortage := self._shortage(dollars, calls):
            raise BudgetSpent(f"{shortage} Every answer so far is kept. Rerun with a higher ceiling to resume.")
        self._held.add(dollars, calls)

    def _must_wait(self, dollars: float, calls: int) -> bool:
        """Return whether to wait. The first paid request goes alone: its bill corrects the bounds of the others."""
        is_first = self.max_usd is not None and dollars > 0 and not self._has_seen_a_bill
        return self._under_way > 0 and (is_first or self._shortage(dollars, calls) is not None)

    def _shortage(self, dollars: float, calls: int) -> str | None:
        """Describe the ceiling that one more request could exceed."""
        share = f" (for each of {self.processes} processes, its part of it)" if self.processes > 1 else ""
        if self.max_usd is not None:
            left = (self.max_usd - self._earlier.dollars) / self.processes - self._paid.dollars
            if self._held.dollars + dollars > left:
                paid = self._earlier.dollars + self._paid.dollars
                return (
                    f"--max-usd {self.max_usd:g}{share} is reached: ${paid:.4f} are paid, "
                    f"and the next request may cost ${dollars:.4f}."
                )
        if self.max_calls is not None:
            left = (self.max_calls - self._earlier.calls) // self.processes - self._paid.calls
            if self._held.calls + calls > left:
                made = self._earlier.calls + self._paid.calls
                return f"--max-calls {self.max_calls}{share} is reached: {made} answers are paid."
        return None


@dataclass
class _Sum:
    dollars: float = 0.0
    calls: int = 0

    def add(self, dollars: float, calls: int) -> None:
        self.dollars += dollars
        self.calls += calls
