"""A chat model by id, which answers from its ledger first and from the provider otherwise.

Equal questions become one request, and an unusable answer is followed by another attempt. Cost is counted by stage
and direction.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Any

from pydantic import BaseModel

from repair_hf.llm.answers import (
    AnswerError,
    FailedAnswer,
    RefusedAnswer,
    Schema,
    UnparsedAnswer,
    next_attempt,
    read_answer,
    request_seed,
    response_format,
)
from repair_hf.llm.batches import Batches, Deferred, open_batches
from repair_hf.llm.calls import without_usage
from repair_hf.llm.cost import Usage, all_parts, count_tokens, price_per_token, text_tokens
from repair_hf.llm.errors import FailedRequest, ProviderError
from repair_hf.llm.keys import as_sent, question_key
from repair_hf.llm.ledger import Call, Ledger, Reply, Topic
from repair_hf.llm.loading import thinking_room
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.prompts import SHIPPED, Prompts
from repair_hf.llm.provider import LiteLLM, Provider
from repair_hf.llm.sending import Question, Retries, Sender
from repair_hf.runtime.run_folder import RunStopped

MARGIN = 1.1  # of a provider's count of a prompt above ours

__all__ = ["AnswerError", "ChatModel", "Deferred", "ProviderError", "RefusedAnswer", "UnparsedAnswer"]


@dataclass
class _Sample:
    """One of several answers to the same messages, and the attempts at it that were unusable."""

    number: int
    messages: list[dict]
    question: str  # digest of what is asked, the same for all samples
    topic: Topic
    schema: type[BaseModel] | None
    temperature: float
    max_tokens: int
    seed: int
    drains: int  # of the sender, when it was asked
    unusable: list[tuple[Reply, UnparsedAnswer]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Key of the next attempt in the ledger."""
        return f"{self.question}-{self.number}-{len(self.unusable)}"


class ChatModel:
    """A language model that answers from its ledger first. Use it in one event loop.

    Args:
        model: LiteLLM model id, such as `gemini/gemini-3.5-flash-lite`; `openai/NAME` with `base_url` for a compatible
            server.
        ledger: Keeps the answers, and the ceilings on what is paid.
        provider: Answers instead of LiteLLM, at no cost: the toy world's oracle.
        batches: Takes the questions that the ledger cannot answer, instead of asking them at once.
        prompts: What is asked; each answer in the ledger names their digest.

    Attributes:
        usage: What was asked and paid in this run, by (stage, direction).
        attempts: How many attempts at a usable answer it makes, those of earlier runs included.
        concurrency: How many requests it sends at once.

    Raises:
        UserError: As `Sender`.
    """

    def __init__(
        self,
        model: str,
        *,
        ledger: Ledger,
        base_url: str | None = None,
        options: RequestOptions | None = None,
        retries: Retries | None = None,
        provider: Provider | None = None,
        batches: Batches | None = None,
        prompts: Prompts = SHIPPED,
    ) -> None:
        options = options or RequestOptions()
        self.model, self.ledger, self.batches, self.prompts = model, ledger, batches, prompts
        self.attempts, self.concurrency = options.answer_attempts, options.concurrency
        self._thinking_room = 0 if provider else thinking_room(model, options.reasoning_effort)
        self._reasoning = {"reasoning_effort": options.reasoning_effort} if options.reasoning_effort else {}
        self.usage: dict[tuple[str, str], Usage] = {}
        price = (0.0, 0.0) if provider else price_per_token(model, batch=batches is not None)
        self._price = price or (0.0, 0.0)
        self._provider = provider or LiteLLM(model, base_url=base_url, timeout=options.timeout)
        self._sender = Sender(model, ledger, options, retries, has_price=price is not None)
        self._read_body = getattr(self._provider, "read", None)
        self._unread: set[str] = set()  # keys of answers that came with a batch in this run
        self._prompt_digest = prompts.digest()

    async def ask(self, messages: list[dict], *, schema: type[Schema] | None = None, **how: Any) -> Schema | str:
        """Ask for one answer, as `ask_many` asks for several.

        Raises:
            AnswerError: If it is unusable; the run goes on without this row.
            Deferred, RunStopped: As `ask_many`.
        """
        (answer,) = await self.ask_many(messages, samples=1, schema=schema, **how)
        if isinstance(answer, AnswerError):
            raise answer
        return answer

    async def ask_many(
        self,
        messages: list[dict],
        *,
        samples: int,
        stage: str,
        direction: str,
        schema: type[Schema] | None = None,
        temperature: float = 0.0,
        max_tokens: int = 1024,
        seed: int = 0,
    ) -> list[Schema | str | AnswerError]:
        """Ask for several answers to the same messages; return each, or why it is unusable.

        While an answer is unusable, it is asked for again: `self.attempts` times in all. The messages are in the
        OpenAI chat format. With `schema` an answer is JSON, returned as an instance of this pydantic model; without
        it, a text. The cost is counted by stage and direction, such as `audit` and `i2t`.

        Raises:
            Deferred: If an answer comes with a batch.
            RunStopped: If the run cannot go on.
        """
        topic = Topic(stage, direction, self.model, prompts=self._prompt_digest)
        how = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed, **self._reasoning}
        question = question_key(messages, model=self.model, schema=schema and schema.__name__, **how)
        what = (messages, question, topic, schema, temperature, max_tokens, seed, self._sender.drains)
        asked = [_Sample(number, *what) for number in range(samples)]
        keys = [each.key for each in asked]
        calls = self.ledger.find_all(keys)
        works = [self._answer(each, calls.get(key)) for each, key in zip(asked, keys, strict=True)]
        if samples == 1 or len(calls) == samples:  # answers that are there need no tasks
            answers = [await work for work in works]
        else:
            answers = await asyncio.gather(*works)
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, AnswerError):
                raise answer
        return answers

    async def collect(self) -> None:
        """Collect the answers of finished batches; the others count as spent. Call it before any question.

        Raises:
            ProviderError: If the provider did not accept a batch or its requests; the answers it gave are kept.
        """
        if self.batches is not None:
            self._unread |= await self.batches.collect()

    async def submit(self, waiting: int) -> None:
        """Submit the questions that wait for a batch, and stop a run in which `waiting` items have no answer yet.

        Raises:
            RunStopped: If there are such items; also if another run on this ledger has submitted their questions.
        """
        if waiting:
            if self.batches is not None:
                await self.batches.submit()
            raise RunStopped(
                f"{open_batches(self.ledger.folder)}, to be answered within a day. Rerun the same command to collect "
                "the answers."
            )

    async def drain(self, seconds: float = 60.0) -> None:
        """Send nothing new, and wait for the answers that are on their way; they are paid for already."""
        await self._sender.drain(seconds)

    async def _answer(self, asked: _Sample, call: Call | None) -> Any:
        """Return a usable answer, or the error in its place; `call` is what the ledger has of the first attempt."""
        try:
            while True:
                reply, is_new = await self._reply(asked, call)
                try:
                    answer: Any = read_answer(reply.text, reply.finish, asked.schema)
                except AnswerError as error:
                    answer = error
                if is_new:
                    fault = f"an unusable answer: {answer}" if isinstance(answer, AnswerError) else None
                    self._sender.circuit.note(fault)
                if not isinstance(answer, UnparsedAnswer):
                    return answer
                asked.unusable.append((reply, answer))
                if len(asked.unusable) == self.attempts:
                    return answer
                call = self.ledger.find(asked.key)
        except Exception as error:
            return error

    def _request(self, asked: _Sample) -> dict[str, Any]:
        """Return what is sent for the next attempt."""
        first: dict[str, Any] = {
            "model": self.model,
            "messages": asked.messages,
            "temperature": asked.temperature,
            "max_tokens": asked.max_tokens + self._thinking_room,
            **self._reasoning,
            **({} if asked.schema is None else {"response_format": response_format(asked.schema)}),
        }
        request = first
        for reply, fault in asked.unusable:
            request = next_attempt(first, request["max_tokens"], reply, fault)
        return request | {"seed": request_seed(asked.seed, asked.number, attempt=len(asked.unusable))}

    async def _reply(self, asked: _Sample, call: Call | None) -> tuple[Reply, bool]:
        """Get a reply from the ledger, a request in flight or the provider; and whether it was just paid for."""
        is_new = call is not None and call.key in self._unread
        if call is None or call.state == "received":  # in place of asking, a body that was received is read
            request = self._request(asked)
            if any(part["type"] == "image_url" for part in all_parts(asked.messages)):
                request = await asyncio.to_thread(as_sent, request)  # images are encoded for nothing else
            if self._sender.drains != asked.drains:  # the run stopped since it was asked
                raise asyncio.CancelledError
            if call is None and self.batches is not None:
                await self.batches.defer(asked.key, request, asked.topic, self._worst(request))
                raise Deferred("the answer comes with a batch")
            call, is_new = await self._ask_provider(asked.key, request, asked.topic)
        self._unread.discard(call.key)
        if call.reply is None:
            raise Deferred("the answer comes with a batch")
        if call.state == "rejected":
            raise RefusedAnswer(f"rejected: {call.reply.text}")
        place = asked.topic[:2]
        if place not in self.usage:
            self.usage[place] = Usage()
        self.usage[place].add(call.reply, replayed=not is_new)
        return call.reply, is_new

    async def _ask_provider(self, key: str, request: dict[str, Any], topic: Topic) -> tuple[Call, bool]:
        async def send() -> Reply:
            return self._checked(await self._provider(request), request)

        question = Question(key, topic, send, partial(self._worst, request), self._read_body)
        try:
            return await self._sender.ask(question)
        except FailedRequest as error:
            raise FailedAnswer(str(error)) from error

    def _checked(self, reply: Reply, request: dict[str, Any]) -> Reply:
        """Return the reply; without its bill, if that is below what its texts alone must have."""
        if any(self._price) and reply.dollars is not None and reply.prompt_tokens:
            parts = all_parts(request["messages"])
            texts = sum(text_tokens(part["text"]) for part in parts if part["type"] == "text")
            if 2 * reply.prompt_tokens < texts or 2 * reply.completion_tokens < text_tokens(reply.text):
                return without_usage(reply)
        return reply

    def _worst(self, request: dict[str, Any]) -> float:
        """Return the most that a request may cost, in dollars."""
        per_token_in, per_token_out = self._price
        prompt = ceil(MARGIN * count_tokens(self.model, request["messages"])) if per_token_in else 0
        return prompt * per_token_in + request["max_tokens"] * per_token_out
