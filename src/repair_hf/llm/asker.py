"""A language model that answers from its ledger first, and from the provider otherwise.

Equal questions become one request, and an unusable answer is followed by another attempt. Cost is counted by stage
and direction.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Mapping
from functools import partial
from math import ceil
from typing import Any

from repair_hf.llm.answers import AnswerError, Schema, UnparsedAnswer, read_answer, response_format
from repair_hf.llm.cost import Usage, count_tokens, price_per_token, token_bill
from repair_hf.llm.keys import as_sent, has_to_encode, question_key
from repair_hf.llm.ledger import Ledger, Reply, Topic
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.paid_model import PaidModel, Retries
from repair_hf.llm.prompts import SHIPPED, Prompts
from repair_hf.llm.provider import (
    BlockedContent,
    Provider,
    RejectedRequest,
    UnreadableReply,
    answer_form,
    check_key,
    find_provider,
    load_litellm,
    mapped,
    thinking_room,
)
from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import without_secrets

logger = logging.getLogger(__name__)

MARGIN = 1.1  # of a provider's count of a prompt above ours
MORE_ROOM = 4  # factor for `max_tokens` when an answer was cut off


class Deferred(Exception):
    """The answer comes with a batch, in a later run."""


class Asker(PaidModel):
    """A language model that answers from its ledger first. Use it for one run, in one event loop at a time.

    Args:
        model: LiteLLM model id, such as `gemini/gemini-3.5-flash-lite`; `openai/NAME` with `base_url` for a compatible
            server.
        ledger: Keeps the answers, and the ceilings on what is paid.
        price: US dollars per prompt token and per completion token; None for LiteLLM's list.
        prompts: What is asked; each answer in the ledger names their digest.
        provider: Answers instead of LiteLLM, at no cost: the toy world's oracle, or a function.

    Attributes:
        usage: What was asked and paid in this run, by (stage, direction).
        attempts: How many attempts at a usable answer it makes, those of earlier runs included.
        concurrency: How many requests it sends at once.

    Raises:
        UserError: If there is a ceiling in dollars and no known price, or the answers of a batch are not collected.
    """

    is_batch = False

    def __init__(
        self,
        model: str,
        ledger: Ledger,
        *,
        options: RequestOptions | None = None,
        base_url: str | None = None,
        price: tuple[float, float] | None = None,
        prompts: Prompts = SHIPPED,
        provider: Provider | None = None,
        retries: Retries | None = None,
    ) -> None:
        options = options or RequestOptions()
        self.price = (0.0, 0.0) if provider else price or price_per_token(model, batch=self.is_batch)
        super().__init__(model, ledger, options, has_price=self.price is not None, retries=retries)
        self.base_url = base_url
        self.attempts = options.answer_attempts
        self.prompts, self._prompt_digest = prompts, prompts.digest()
        self.usage: dict[tuple[str, str], Usage] = {}
        self.collected: set[str] = set()  # keys of answers that came with a batch in this run
        self._provider, self._stated_price = provider, price
        self._billed_as = model
        self._answerers: set[str] = set()  # models that have answered, in the provider's words
        self._reasoning = {"reasoning_effort": options.reasoning_effort} if options.reasoning_effort else {}
        self._thinking_room = 0
        self._form, self._may_take_schema = "schema", False
        if provider is None:
            check_key(model, base_url)
            self._thinking_room = thinking_room(model, options.reasoning_effort)
            self._form = answer_form(model)
            self._may_take_schema = self._form == "free" and base_url is not None  # nobody knows before it is asked
        if not self.is_batch and (count := ledger.in_batches(model)):
            raise UserError(
                f"{count:,} questions to {model} are in batches that are not collected yet ({ledger.path}). "
                "Asking now would pay for them twice; give --batch to collect them."
            )

    async def ask(
        self,
        messages: list[dict],
        *,
        stage: str,
        direction: str,
        schema: type[Schema] | None = None,
        sample: int = 0,
        temperature: float = 0.0,
        max_tokens: int = 1024,
        seed: int = 0,
    ) -> Schema | str:
        """Ask for an answer, and while it is unusable ask again: `self.attempts` times in all.

        Args:
            messages: In the OpenAI chat format; images are `ImageURL`.
            stage: The cost is counted by stage and direction, such as `audit` and `i2t`.
            direction: See `stage`.
            schema: The answer is JSON, returned as an instance of this pydantic model; None for a text.
            sample: Number of this answer among several to the same messages.
            temperature: Of the sampling.
            max_tokens: Of the answer; thoughts of the model come on top.
            seed: Of the sampling, where the provider takes one.

        Raises:
            AnswerError: If no answer is usable; the run goes on without this row.
            Deferred: If the answer comes with a batch.
            RunStopped: If the run cannot go on.
        """
        topic = Topic(stage, direction, self.model, self._prompt_digest)
        sampling = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed, **self._reasoning}
        question = question_key(messages, model=self.model, schema=schema and schema.__name__, **sampling)
        request = self._first_request(messages, schema, sampling)
        answer: Any = None
        for attempt in range(self.attempts):
            # 31 bits, which is what providers accept
            request["seed"] = zlib.crc32(f"{seed}/{sample}/{attempt}".encode()) >> 1
            reply, is_new = await self._reply(f"{question}-{sample}-{attempt}", topic, request)
            answer = _read(reply, schema)
            if is_new:
                self.circuit.note(f"an unusable answer: {answer}" if isinstance(answer, AnswerError) else None)
            if not isinstance(answer, UnparsedAnswer):
                break
            request = _next_attempt(request, messages, reply, answer)
        if isinstance(answer, AnswerError):
            raise answer
        return answer

    def _first_request(
        self, messages: list[dict], schema: type[Schema] | None, sampling: dict[str, Any]
    ) -> dict[str, Any]:
        request = sampling | {"model": self.model, "messages": messages}
        request["max_tokens"] += self._thinking_room
        return request if schema is None else request | {"response_format": response_format(schema)}

    async def collect(self) -> None:
        """Collect the answers of finished batches. Call it before any question."""

    async def submit(self) -> None:
        """Submit the questions that wait for a batch. Call it after the last question."""

    async def _reply(self, key: str, topic: Topic, request: Mapping[str, Any]) -> tuple[Reply, bool]:
        """Return the reply to an attempt, and whether it was paid in this run."""
        reply = self.ledger.find(key)
        is_new = key in self.collected
        if reply is None:
            messages = request["messages"]
            # encoding takes milliseconds, in which the event loop would stand still; all else is faster than a thread
            sent = await asyncio.to_thread(as_sent, messages) if has_to_encode(messages) else as_sent(messages)
            reply, is_new = await self._ask(key, topic, {**request, "messages": sent})
        self.collected.discard(key)
        self.usage.setdefault((topic.stage, topic.direction), Usage()).add(reply, replayed=not is_new)
        return reply, is_new

    async def _ask(self, key: str, topic: Topic, request: dict[str, Any]) -> tuple[Reply, bool]:
        return await self.pay(key, topic, partial(self.worst, request), partial(self._send, request))

    async def _send(self, request: dict[str, Any]) -> Reply:
        """Send a request once."""
        if self._provider is not None:
            return _sendable(await self._provider(request))
        if not self._may_take_schema or "response_format" not in request:
            return await self._complete(self.fitted(request))
        try:
            reply = await self._complete(request)
        except RejectedRequest:
            self._may_take_schema = False
            logger.info("%s rejects structured output; requests are sent without it.", self.model)
            return await self._complete(self.fitted(request))
        self._form, self._may_take_schema = "schema", False
        return reply

    async def _complete(self, request: dict[str, Any]) -> Reply:
        options = request | {"api_base": self.base_url, "max_retries": 0, "num_retries": 0}
        options["drop_params"] = True  # not every provider accepts a seed
        del options["model"]
        try:
            response = await self.call(load_litellm().acompletion, **options)
        except BlockedContent as error:
            return Reply(str(error), "content_filter", dollars=0.0, answered_by=self.model)
        return self.read(response)

    def fitted(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a request with as much of its `response_format` as the model supports."""
        fitted = dict(request)
        effort = fitted.get("reasoning_effort")
        if effort and mapped(self.model, effort).get("thinking", {}).get("type") in ("enabled", "adaptive"):
            del fitted["temperature"]  # a Claude that thinks rejects any but its own
        if "response_format" in fitted and self._form == "object":
            fitted["response_format"] = {"type": "json_object"}
        elif self._form == "free":
            fitted.pop("response_format", None)
        return fitted

    def read(self, response: Any) -> Reply:
        """Return the reply in LiteLLM's response, with its bill.

        Raises:
            UnreadableReply: If it holds no answer.
        """
        if not response.choices:
            raise UnreadableReply(f"{self.model} sent a reply without an answer")
        choice, usage = response.choices[0], getattr(response, "usage", None)
        extra = getattr(choice.message, "provider_specific_fields", None) or {}
        refusal = getattr(choice.message, "refusal", None) or extra.get("refusal")  # the former in a batch
        text = refusal or choice.message.content or ""
        finish = "refusal" if refusal else choice.finish_reason or "stop"
        answered_by = without_secrets(str(response.model or self.model))
        self._take_price_of(answered_by)
        dollars = token_bill(
            usage, self._billed_as, has_text=bool(text), batch=self.is_batch, stated=self._stated_price
        )
        if usage is None and finish == "content_filter":
            dollars = 0.0
        prompt_tokens, completion_tokens = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
        return _sendable(Reply(text, finish, prompt_tokens, completion_tokens, dollars, answered_by))

    def worst(self, request: Mapping[str, Any]) -> float:
        """Return the most that a request may cost, in dollars."""
        per_token_in, per_token_out = self.price or (0.0, 0.0)
        prompt = ceil(MARGIN * count_tokens(self.model, request["messages"])) if per_token_in else 0
        return prompt * per_token_in + request["max_tokens"] * per_token_out

    def _take_price_of(self, answered_by: str) -> None:
        """Reserve and bill by the model that answers, if it is known and dearer: a deployment may have any name."""
        if answered_by in self._answerers:
            return
        self._answerers.add(answered_by)
        name = f"{find_provider(self.model)[1]}/{answered_by}"
        price = price_per_token(name, batch=self.is_batch)
        if (
            self._stated_price is None
            and price is not None
            and self.price is not None
            and sum(price) > sum(self.price)
        ):
            logger.warning("%s answers as %s, which is dearer; it is billed at the price of that.", self.model, name)
            self.price, self._billed_as = price, name


def _read(reply: Reply, schema: type[Schema] | None) -> Schema | str | AnswerError:
    """Return the answer in a reply, or why it is unusable."""
    try:
        return read_answer(reply.text, reply.finish, schema)
    except AnswerError as error:
        return error


def _next_attempt(
    request: dict[str, Any], messages: list[dict], reply: Reply, fault: UnparsedAnswer
) -> dict[str, Any]:
    """Return the request again: with more room, or with the unusable answer and what is wrong with it."""
    if reply.finish == "length":
        return request | {"messages": messages, "max_tokens": request["max_tokens"] * MORE_ROOM}
    if not reply.text.strip():
        return request | {"messages": messages}
    wanted = "JSON object" if "response_format" in request else "text"
    complaint = f"This cannot be used: {fault}. Answer again with the {wanted} that was asked for, and nothing else."
    turns = [{"role": "assistant", "content": reply.text}, {"role": "user", "content": complaint}]
    return request | {"messages": [*messages, *turns]}


def _sendable(reply: Reply) -> Reply:
    """Replace halves of surrogate pairs, which can be neither sent nor written."""
    return reply._replace(text=reply.text.encode("utf-8", "replace").decode())
