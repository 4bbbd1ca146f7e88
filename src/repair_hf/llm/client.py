"""A chat model by id: asks, remembers, checks, counts.

In:  messages in the OpenAI chat format, and what the answer must look like.
Out: the answer, checked; from the journal where the same was asked before, else from the provider. What an answer cost is counted
     by stage and direction.

Who does what: `provider` sends, `retries` insists, `journal` remembers, `answers` reads and checks; this file joins them: at most so
many requests at once, one request for equal questions, one second attempt where an answer is of no use.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

from repair_hf.llm.answers import AnswerError, RefusedAnswer, Schema, UnparsedAnswer, read_answer
from repair_hf.llm.cost import Usage
from repair_hf.llm.journal import Entry, Journal, request_key
from repair_hf.llm.provider import LiteLLM, Provider, ProviderError, Reply
from repair_hf.llm.retries import Retries, insist
from repair_hf.options import UserError

__all__ = ["AnswerError", "ChatModel", "ProviderError", "RefusedAnswer", "UnparsedAnswer"]

MORE_ROOM = 4  # an answer that was cut off is asked for again with so many times the tokens: some models think before they write


class ChatModel:
    """A language model that answers from its journal first. Make and use it in one event loop.

    Args:
        model: LiteLLM model id, such as `gemini/gemini-2.5-flash`; `openai/NAME` with `base_url` for a server of that protocol.
        journal: Where answers are kept.
        base_url: Of a custom endpoint.
        concurrency: How many requests may be under way at once.
        timeout: Seconds until a request counts as failed.
        retries: How long to believe in a provider that fails.
        provider: Who answers instead of LiteLLM: a model that lives in this process.

    Attributes:
        usage: What was asked and paid in this run, by (stage, direction).
    """

    def __init__(
        self,
        model: str,
        *,
        journal: Journal,
        base_url: str | None = None,
        concurrency: int = 16,
        timeout: float = 120.0,
        retries: Retries | None = None,
        provider: Provider | None = None,
    ) -> None:
        if concurrency < 1:
            raise UserError(f"`concurrency` must be at least 1, got {concurrency}.")
        self.model, self.journal = model, journal
        self.usage: dict[tuple[str, str], Usage] = {}
        self._provider = provider or LiteLLM(model, base_url=base_url, timeout=timeout)
        self._retries = retries or Retries()
        self._concurrency = concurrency
        self._slots_of: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        self._pending: dict[str, asyncio.Task[Entry]] = {}
        self._on_wire: set[asyncio.Task] = set()
        self._is_draining = False

    async def ask(
        self,
        messages: list[dict],
        *,
        stage: str,
        direction: str,
        schema: type[Schema] | None = None,
        temperature: float = 0.0,
        max_tokens: int = 1024,
        sample: int = 0,
        seed: int = 0,
    ) -> Schema | str:
        """Ask once and, where the answer is of no use, once more.

        Args:
            messages: The conversation so far, in the OpenAI chat format.
            stage: What it is for; for the accounts only.
            direction: `i2t` or `t2i`; for the accounts only.
            schema: What the answer, a JSON object, must fill; None for plain text.
            temperature: Of the model's draws.
            max_tokens: Bound on the answer's length.
            sample: Which of several answers to the same messages.
            seed: Fixes the draws, where the provider takes a seed.

        Returns:
            An instance of `schema`; without one, the text.

        Raises:
            AnswerError: If the answer cannot be used: the row's fault, the run goes on.
            ProviderError: If there is no answer: the run's end.
        """
        request = {
            "model": self.model,
            "messages": messages,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": _request_seed(seed, sample, attempt=0),
        }
        entry = await self._answer(request, sample, stage, direction)
        try:
            return read_answer(entry.text, entry.finish, schema)
        except UnparsedAnswer as fault:
            change = _second_attempt(request, entry, fault)
        request = {**request, "seed": _request_seed(seed, sample, attempt=1), **change}
        entry = await self._answer(request, sample, stage, direction)
        return read_answer(entry.text, entry.finish, schema)

    async def drain(self) -> None:
        """Wait for the answers that are being paid for, and give up what was not sent. Call it where a run stops early.

        Whoever waits for an answer that is given up is cancelled.
        """
        pending = list(self._pending.values())
        for task in pending:
            if task not in self._on_wire:
                task.cancel()
        self._is_draining = True
        try:
            await asyncio.gather(*pending, return_exceptions=True)
        finally:
            self._is_draining = False

    async def _answer(self, request: dict[str, Any], sample: int, stage: str, direction: str) -> Entry:
        """From the journal, from an equal request that is under way, or from the provider."""
        key = request_key(request, sample)
        entry = self.journal.get(key)
        is_new = entry is None and key not in self._pending
        if is_new and self._is_draining:  # an answer of no use has just come, and this is its second attempt
            raise asyncio.CancelledError
        if is_new:
            self._pending[key] = asyncio.create_task(self._pay(key, request, stage, direction))
            self._pending[key].add_done_callback(lambda task: self._settle(key, task))
        if entry is None:  # shielded: whoever waits may be cancelled, the answer is paid for all the same
            entry = await asyncio.shield(self._pending[key])
        self.usage.setdefault((stage, direction), Usage()).add(entry, replayed=not is_new)
        return entry

    async def _pay(self, key: str, request: dict[str, Any], stage: str, direction: str) -> Entry:
        async with self._slots():
            reply = await insist(lambda: self._send(request), self._retries, self.model)
        entry = Entry(
            key=key,
            text=reply.text,
            finish=reply.finish,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            dollars=reply.dollars,
            stage=stage,
            direction=direction,
            model=self.model,
            answered_by=reply.answered_by,
        )
        self.journal.put(entry)
        return entry

    async def _send(self, request: dict[str, Any]) -> Reply:
        task = asyncio.current_task()
        self._on_wire.add(task)
        try:
            return await self._provider(request)
        finally:
            self._on_wire.discard(task)

    def _slots(self) -> asyncio.Semaphore:
        """Those of the running event loop: a semaphore serves one loop only, and each run of a synthesis has its own."""
        loop = asyncio.get_running_loop()
        if self._slots_of is None or self._slots_of[0] is not loop:
            self._slots_of = loop, asyncio.Semaphore(self._concurrency)
        return self._slots_of[1]

    def _settle(self, key: str, task: asyncio.Task) -> None:
        del self._pending[key]
        if not task.cancelled():
            task.exception()  # marks it as seen, for nobody may be waiting any more


def _request_seed(seed: int, sample: int, *, attempt: int) -> int:
    """A 31-bit number, which is what providers take, that differs between samples and between attempts."""
    return zlib.crc32(f"{seed}/{sample}/{attempt}".encode()) >> 1


def _second_attempt(request: dict[str, Any], entry: Entry, fault: UnparsedAnswer) -> dict[str, Any]:
    """What to change in a request whose answer was of no use."""
    if entry.finish == "length":
        return {"max_tokens": request["max_tokens"] * MORE_ROOM}
    if not entry.text.strip():
        return {}
    said = {"role": "assistant", "content": entry.text}
    complaint = (
        f"This cannot be used: {fault}. Answer again with the JSON object that was asked for, and nothing else."
    )
    return {"messages": [*request["messages"], said, {"role": "user", "content": complaint}]}
