"""A chat model by id, which answers from its ledger first and from the provider otherwise.

Equal questions become one request, and an unusable answer is followed by another attempt. Cost is counted by stage
and direction.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import ceil
from typing import Any

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
        """Ask a question; while the answer is unusable, ask again: `self.attempts` times in all.

        The messages are in the OpenAI chat format. With `schema` the answer is JSON, returned as an instance of this
        pydantic model; without it, a text. The cost is counted by stage and direction, such as `audit` and `i2t`.
        `sample` distinguishes several answers to the same messages.

        Raises:
            AnswerError: If the answer is unusable; the run goes on without this row.
            Deferred: If the answer comes with a batch.
            RunStopped: If the run cannot go on.
        """
        topic = Topic(stage, direction, self.model, prompts=self._prompt_digest)
        sampling = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed, "sample": sample}
        first = request = self._request(messages, schema, sampling)
        drains = self._sender.drains
        for attempt in range(self.attempts):
            key = self._key(messages, schema, sampling, attempt)
            reply, is_new = await self._answer(key, request, topic, drains)
            try:
                return self._read(schema, reply.text, reply.finish, is_new)
            except UnparsedAnswer as fault:
                if attempt + 1 == self.attempts:
                    raise
                again = {"seed": request_seed(seed, sample, attempt=attempt + 1)}
                request = next_attempt(first, request["max_tokens"], reply, fault) | again
        raise AssertionError("`attempts` must be positive")

    async def ask_many(self, messages: list[dict], *, samples: int, **how: Any) -> list[Schema | str | AnswerError]:
        """Ask for several answers to the same messages, as `ask` does; return each, or why it is unusable."""
        asked = (self.ask(messages, sample=sample, **how) for sample in range(samples))
        answers: list[Schema | str | AnswerError] = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, AnswerError):
                raise answer
            answers.append(answer)
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

    def _request(self, messages: list[dict], schema: type[Schema] | None, sampling: dict[str, Any]) -> dict[str, Any]:
        """Return what is sent for the first attempt at a question."""
        return {
            "model": self.model,
            "messages": messages,
            "temperature": sampling["temperature"],
            "max_tokens": sampling["max_tokens"] + self._thinking_room,
            "seed": request_seed(sampling["seed"], sampling["sample"], attempt=0),
            **self._reasoning,
            **({} if schema is None else {"response_format": response_format(schema)}),
        }

    def _key(self, messages: list[dict], schema: type[Schema] | None, sampling: dict[str, Any], attempt: int) -> str:
        asked = {"model": self.model, "schema": schema and schema.__name__, "attempt": attempt}
        return question_key(messages, **sampling, **asked, **self._reasoning)

    async def _answer(self, key: str, request: dict[str, Any], topic: Topic, drains: int) -> tuple[Reply, bool]:
        """Get an answer from the ledger, a request in flight or the provider; and whether it was just paid for."""
        call = self.ledger.find(key)
        is_new = call is not None and call.key in self._unread
        if call is None or call.state == "received":  # in place of asking, a body that was received is read
            if any(part["type"] == "image_url" for part in all_parts(request["messages"])):
                request = await asyncio.to_thread(as_sent, request)  # images are encoded for nothing else
            if self._sender.drains != drains:  # the run stopped since it was asked
                raise asyncio.CancelledError
            if call is None and self.batches is not None:
                await self.batches.defer(key, request, topic, self._worst(request))
                raise Deferred("the answer comes with a batch")
            call, is_new = await self._ask_provider(key, request, topic)
        self._unread.discard(call.key)
        if call.reply is None:
            raise Deferred("the answer comes with a batch")
        if call.state == "rejected":
            raise RefusedAnswer(f"rejected: {call.reply.text}")
        self.usage.setdefault(topic[:2], Usage()).add(call.reply, replayed=not is_new)
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

    def _read(self, schema: type[Schema] | None, text: str, finish: str, is_new: bool) -> Schema | str:
        """Read an answer; if it is new, note in the circuit whether it is usable."""
        try:
            answer = read_answer(text, finish, schema)
        except AnswerError as fault:
            if is_new:
                self._sender.circuit.note(f"an unusable answer: {fault}")
            raise
        if is_new:
            self._sender.circuit.note(None)
        return answer
