"""Sending: one request on its way to a reply, held back by limits and budget, insisted on, and watched by the circuit.

In:  a request in the OpenAI chat format.
Out: the reply; or what ends the run.

A request has its place among those under way from its first attempt to its last, waits between them included: so a provider that is
down is asked by few. Each single attempt waits for its turn by the limits, and sets aside what it may cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from repair_hf.llm.budget import Budget, PromptSize, guess_tokens
from repair_hf.llm.failures import PassingFailure
from repair_hf.llm.limits import Circuit, Limits
from repair_hf.llm.provider import Provider, Reply
from repair_hf.llm.retries import Retries, insist
from repair_hf.llm.tokens import count_tokens
from repair_hf.runtime.options import UserError

# The circuit looks back over so many attempts at least, and over so many for each place: when a provider stumbles, all that is under
# way fails at once, and `retries` must have the time to find out whether it comes back.
WINDOW, WINDOW_PER_PLACE = 200, 16


class Sender:
    """Sends requests to one model.

    Args:
        model: Whose name failures are told by.
        provider: Who answers.
        price: US dollars per prompt token and per completion token; None where no price is known.
        retries: How long to believe in a provider that fails.
        limits: How much may be asked at once and per minute.
        budget: What may be paid.
        max_error_rate: The share of recent attempts that may fail, or bring answers of no use.

    Attributes:
        circuit: To be told of answers of no use; failed attempts it learns of here.
        prompts: To be told of bills that come with batches; those of `send` it learns of here.
        on_wire: Tasks whose request is with the provider, and may be paid already.

    Raises:
        UserError: If the budget is in dollars and no price is known.
    """

    def __init__(
        self,
        model: str,
        provider: Provider,
        *,
        price: tuple[float, float] | None,
        retries: Retries,
        limits: Limits,
        budget: Budget,
        max_error_rate: float,
    ) -> None:
        if budget.max_usd is not None and price is None:
            raise UserError(
                f"`max_usd` cannot be kept: no list price is known for {model!r}. Set `max_calls` instead, which counts the LLM's answers, but no images."
            )
        self.circuit = Circuit(max_error_rate, window=max(WINDOW, WINDOW_PER_PLACE * limits.concurrency))
        self.on_wire: set[asyncio.Task] = set()
        self._model, self._provider, self._price = model, provider, price or (0.0, 0.0)
        self._retries, self._limits, self._budget = retries, limits, budget
        self.prompts = PromptSize()
        self._has_served = False
        self._places_of: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def send(self, request: dict[str, Any], lose: Callable[[float | None], None]) -> Reply:
        """Send until a reply comes.

        Args:
            request: In the OpenAI chat format.
            lose: Told of each attempt whose answer was lost though it may be billed: what it cost at most, None without a price.

        Raises:
            FailedRequest: If no attempt at this very request brings a reply, though others got theirs.
            RunStopped: If no request gets a reply, if too much fails, or if the budget is spent.
        """
        async with self._places():
            return await insist(lambda: self._attempt(request, lose), self._retries, self._model, self._may_drop)

    def worst_case(self, request: dict[str, Any]) -> float:
        """US dollars that a request may cost. Its tokens are counted, which takes milliseconds and teaches as much as a bill."""
        if not any(self._price):
            return 0.0
        guess = guess_tokens(request["messages"])
        self.prompts.learn(guess, count_tokens(self._model, request["messages"]))
        return self._cost(guess, _answer_tokens(request))

    async def _attempt(self, request: dict[str, Any], lose: Callable[[float | None], None]) -> Reply:
        guess, answers = guess_tokens(request["messages"]), _answer_tokens(request)
        try:
            async with (
                self._limits.slot(self.prompts.bound(guess) + answers) as slot,
                self._budget.hold(lambda: self._cost(guess, answers)) as hold,
            ):
                reply = await hold.settle(self._on_the_wire(request), lambda: self.worst_case(request), lose)
                self._has_served = True
                slot.tokens = (reply.prompt_tokens + reply.completion_tokens) or slot.tokens
                self.prompts.learn(guess, reply.prompt_tokens)
                return reply
        except PassingFailure as failure:
            if not failure.is_rate_limit:  # the limits take care of those
                self.circuit.note(str(failure))
            raise

    def _may_drop(self) -> bool:
        return self._has_served or self.circuit.max_error_rate == 1

    async def _on_the_wire(self, request: dict[str, Any]) -> Reply:
        task = asyncio.current_task()
        self.on_wire.add(task)
        try:
            return await self._provider(request)
        finally:
            self.on_wire.discard(task)

    def _cost(self, guess: int, answers: int) -> float:
        return self.prompts.bound(guess) * self._price[0] + answers * self._price[1]

    def _places(self) -> asyncio.Semaphore:
        """Those of the running event loop: a semaphore serves one loop only, and each run of a synthesis has its own."""
        loop = asyncio.get_running_loop()
        if self._places_of is None or self._places_of[0] is not loop:
            self._places_of = loop, asyncio.Semaphore(self._limits.concurrency)
        return self._places_of[1]


def _answer_tokens(request: dict[str, Any]) -> int:
    """As many as the answers may have."""
    return request["max_tokens"] * request.get("n", 1)
