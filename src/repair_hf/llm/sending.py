"""Send one request until its reply comes, within the limits and the budget.

A request keeps its place among those in flight from its first attempt to its last, waits included, so a provider that
is down gets few requests. Each attempt waits for its turn by the limits and sets aside its worst case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from repair_hf.llm.budget import Budget
from repair_hf.llm.failures import PassingFailure, Retries, insist
from repair_hf.llm.limits import Circuit, Limits
from repair_hf.llm.provider import LiteLLM, Provider, Reply
from repair_hf.llm.tokens import PromptSize, count_tokens, guess_tokens
from repair_hf.runtime.options import UserError

# How many attempts the circuit looks back over: at least so many, and so many per request at once. When a provider
# stumbles, everything in flight fails together, and the retries need time to find out whether it recovers.
WINDOW, WINDOW_PER_PLACE = 200, 16


@dataclass
class RequestOptions:
    """How requests are sent.

    Args:
        timeout: Seconds until a request counts as failed.
        reasoning_effort: How much the model thinks first, in the words of the OpenAI protocol; None for the provider's
            default.
        max_error_rate: Share of recent attempts that may fail, or bring unusable answers, before the run stops.
        answer_attempts: How often a question is asked in all, by all runs of a folder, while no answer is usable.
    """

    timeout: float = 300.0
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = None
    limits: Limits = field(default_factory=Limits)
    retries: Retries = field(default_factory=Retries)
    max_error_rate: float = 0.5
    answer_attempts: int = 3


class Sender:
    """Sends requests to one model; `price` is in US dollars per prompt token and per completion token.

    Attributes:
        circuit: Learns here of failed attempts; the caller notes unusable answers.
        prompts: Learns here from the bills of `send`; the caller adds those that come with batches.
        on_wire: Tasks whose request is with the provider, and may be billed already.
    """

    def __init__(
        self,
        model: str,
        provider: Provider,
        *,
        price: tuple[float, float] | None,
        options: RequestOptions,
        budget: Budget,
    ) -> None:
        if budget.max_usd is not None and price is None:
            raise UserError(
                f"`max_usd` cannot be enforced: no list price is known for {model!r}. "
                "Use `max_calls` instead, which limits LLM answers, not images."
            )
        window = max(WINDOW, WINDOW_PER_PLACE * options.limits.concurrency)
        self.circuit = Circuit(options.max_error_rate, window=window)
        self.prompts = PromptSize()
        self.on_wire: set[asyncio.Task | None] = set()
        self._model, self._provider, self._price = model, provider, price or (0.0, 0.0)
        self._retries, self._limits, self._budget = options.retries, options.limits, budget
        self._has_served = False
        self._places_of: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def send(self, request: dict[str, Any], lose: Callable[[float | None], None]) -> Reply:
        """Send until a reply comes; see `insist` for the errors. `lose` is as in `Hold.settle`."""
        async with self._places():
            return await insist(
                lambda: self._attempt(request, lose),
                self._retries,
                self._model,
                may_drop=lambda: self._has_served or self.circuit.max_error_rate == 1,
            )

    def worst_case(self, request: dict[str, Any]) -> float:
        """Return the US dollars that a request may cost, from counted tokens, which also correct later bounds."""
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
                if isinstance(self._provider, LiteLLM):
                    await self._provider.ready(request)  # not in `settle`: nothing can be lost yet
                reply = await hold.settle(self._on_the_wire(request), lambda: self.worst_case(request), lose)
                self._has_served = True
                slot.tokens = (reply.prompt_tokens + reply.completion_tokens) or slot.tokens
                self.prompts.learn(guess, reply.prompt_tokens)
                return reply
        except PassingFailure as failure:
            if not failure.is_rate_limit:  # `Limits` handles these
                self.circuit.note(str(failure))
            raise

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
        """Return the semaphore of the running event loop: each run of a synthesis has a loop of its own."""
        loop = asyncio.get_running_loop()
        if self._places_of is None or self._places_of[0] is not loop:
            self._places_of = loop, asyncio.Semaphore(self._limits.concurrency)
        return self._places_of[1]


def _answer_tokens(request: dict[str, Any]) -> int:
    """Return the maximum number of answer tokens."""
    return request["max_tokens"] * request.get("n", 1)
