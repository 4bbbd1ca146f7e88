"""A chat model by id: asks, remembers, checks, counts.

In:  messages in the OpenAI chat format, and what the answer must look like.
Out: the answer, checked; from the journal where the same was asked before, else from the provider. What an answer cost is counted
     by stage and direction.

Who does what: `sending` gets a reply, `journal` remembers, `answers` reads and checks; this file joins them: one request for equal
questions, one second attempt where an answer is of no use.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from repair_hf.llm.answers import (
    AnswerError,
    FailedAnswer,
    RefusedAnswer,
    Schema,
    UnparsedAnswer,
    read_answer,
    request_seed,
    response_format,
    second_attempt,
)
from repair_hf.llm.batches import Batches, Deferred, Question
from repair_hf.llm.budget import Budget, BudgetSpent, guess_tokens
from repair_hf.llm.cost import Usage, price_per_token
from repair_hf.llm.failures import FailedRequest, ProviderError, RejectedRequest
from repair_hf.llm.journal import REJECTED, Entry, Journal, lost, request_key
from repair_hf.llm.limits import Limits
from repair_hf.llm.provider import LiteLLM, Provider, Reply, thinking_room
from repair_hf.llm.retries import Retries
from repair_hf.llm.sending import Sender

__all__ = ["AnswerError", "ChatModel", "Deferred", "ProviderError", "RefusedAnswer", "UnparsedAnswer"]

BATCH_SHARE = 0.5  # of the list price


class ChatModel:
    """A language model that answers from its journal first. Make and use it in one event loop.

    Args:
        model: LiteLLM model id, such as `gemini/gemini-2.5-flash`; `openai/NAME` with `base_url` for a server of that protocol.
        journal: Where answers are kept. What it has paid counts as spent.
        base_url: Of a custom endpoint.
        timeout: Seconds until a request counts as failed.
        retries: How long to believe in a provider that fails.
        provider: Who answers instead of LiteLLM: a model that lives in this process, and costs nothing.
        limits: How much may be asked at once and per minute.
        budget: What may be paid.
        max_error_rate: The share of recent attempts that may fail or be of no use before the run stops.
        batches: Takes the questions that the journal cannot answer, in place of asking them at once.
        reasoning_effort: How much a model thinks first, in the OpenAI protocol's words; None leaves it to the provider.

    Attributes:
        usage: What was asked and paid in this run, by (stage, direction).
        budget: What may be paid; whoever else costs money for the same run is to hold to it too.

    Raises:
        UserError: If the budget is in dollars and the model has no known price.
    """

    def __init__(
        self,
        model: str,
        *,
        journal: Journal,
        base_url: str | None = None,
        timeout: float = 300.0,
        retries: Retries | None = None,
        provider: Provider | None = None,
        limits: Limits | None = None,
        budget: Budget | None = None,
        max_error_rate: float = 0.5,
        batches: Batches | None = None,
        reasoning_effort: str | None = None,
    ) -> None:
        self.model, self.journal, self.batches = model, journal, batches
        self._thinking_room = 0 if provider else thinking_room(model, reasoning_effort)
        self._reasoning = {"reasoning_effort": reasoning_effort} if reasoning_effort else {}
        self.usage: dict[tuple[str, str], Usage] = {}
        self.budget = budget or Budget()
        self.budget.count(journal.dollars, journal.calls)
        self._sender = Sender(
            model,
            provider or LiteLLM(model, base_url=base_url, timeout=timeout),
            price=(0.0, 0.0) if provider else price_per_token(model),
            retries=retries or Retries(),
            limits=limits or Limits(),
            budget=self.budget,
            max_error_rate=max_error_rate,
        )
        self._pending: dict[str, asyncio.Task[Entry]] = {}
        self._unread: set[str] = set()  # keys of answers that came with a batch in this run
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
            Deferred: If the answer comes with a batch.
            RunStopped: If there is none: the run's end.
        """
        request = self._request(messages, temperature, max_tokens, request_seed(seed, sample, attempt=0))
        if schema is not None:
            request["response_format"] = response_format(schema)
        entry, is_new = await self._answer(request, sample, stage, direction)
        try:
            return self._read(entry.text, entry.finish, schema, is_new)
        except UnparsedAnswer as fault:
            request = second_attempt(request, entry, fault) | {"seed": request_seed(seed, sample, attempt=1)}
        entry, is_new = await self._answer(request, sample, stage, direction)
        return self._read(entry.text, entry.finish, schema, is_new)

    async def ask_many(
        self,
        messages: list[dict],
        *,
        samples: int,
        together: bool,
        stage: str,
        direction: str,
        temperature: float,
        max_tokens: int = 1024,
        seed: int = 0,
    ) -> list[str | AnswerError]:
        """Ask for several texts in answer to the same messages; for each get the text, or why it cannot be used.

        Args:
            messages: As in `ask`, like all that is not told here.
            samples: How many texts.
            together: Ask for all in one request, which pays for the messages once. Those that do not come with it, or are of no
                use, are asked for one by one.
            stage: For the accounts only.
            direction: For the accounts only.
            temperature: Of the model's draws.
            max_tokens: Bound on the length of each.
            seed: Fixes the draws, where the provider takes a seed.

        Raises:
            Deferred: If the answers come with a batch.
            RunStopped: If there are none: the run's end.
        """
        found: dict[int, str | AnswerError] = {}
        if together and samples > 1:
            request = self._request(messages, temperature, max_tokens, request_seed(seed, 0, attempt=0))
            with suppress(RefusedAnswer, FailedAnswer):  # by a server that knows no `n`
                entry, is_new = await self._answer({**request, "n": samples}, 0, stage, direction)
                if entry.finish == REJECTED:
                    raise RefusedAnswer(entry.text)
                for sample, (text, finish) in enumerate([(entry.text, entry.finish), *entry.others]):
                    try:
                        found[sample] = self._read(text, finish, None, is_new)
                    except RefusedAnswer as refusal:
                        found[sample] = refusal
                    except UnparsedAnswer:
                        continue  # a second attempt, below
        ask = partial(self.ask, messages, stage=stage, direction=direction, temperature=temperature, seed=seed)
        missing = [sample for sample in range(samples) if sample not in found]
        asked = (ask(max_tokens=max_tokens, sample=sample) for sample in missing)
        for sample, answer in zip(missing, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, AnswerError):
                raise answer  # not the fault of what was asked
            found[sample] = answer
        return [found[sample] for sample in range(samples)]

    @property
    def dollars(self) -> float:
        """What this run has paid, as far as prices are known."""
        return sum(use.dollars for use in self.usage.values())

    async def collect(self) -> None:
        """Take in what batches have answered meanwhile; what is still with the provider counts as spent. Call it before the first question.

        Raises:
            ProviderError: If the provider did not accept a batch or its requests; what it did answer is kept all the same.
        """
        if self.batches is not None:
            await self.batches.collect(self._keep_collected)
            self.budget.count(self.batches.promised, self.batches.waiting)

    def _keep_collected(self, question: Question, reply: Reply) -> None:
        if self.journal.get(question.key) is not None:
            return
        if reply.finish == REJECTED and self.model not in self.journal.models:
            raise ProviderError(reply.text)  # hardly the fault of this request alone
        if reply.dollars is None:
            reply = replace(reply, at_most=question.dollars)
        self.budget.count(self._keep(question, reply).spent, calls=1)
        self._sender.prompts.learn(question.guess, reply.prompt_tokens)
        self._unread.add(question.key)

    async def drain(self) -> None:
        """Wait for the answers that are being paid for, and give up what was not sent. Call it where a run stops early.

        Whoever waits for an answer that is given up is cancelled.
        """
        pending = list(self._pending.values())
        for task in set(pending) - self._sender.on_wire:
            task.cancel()
        self._is_draining = True
        try:
            await asyncio.gather(*pending, return_exceptions=True)
        finally:
            self._is_draining = False

    def _request(self, messages: list[dict], temperature: float, max_tokens: int, seed: int) -> dict[str, Any]:
        sampling = {"temperature": temperature, "max_tokens": max_tokens + self._thinking_room, "seed": seed}
        return {"model": self.model, "messages": messages, **sampling, **self._reasoning}

    async def _answer(self, request: dict[str, Any], sample: int, stage: str, direction: str) -> tuple[Entry, bool]:
        """From the journal, from an equal request that is under way, or from the provider; and whether it was just paid for."""
        key = request_key(request, sample)
        entry = self.journal.get(key)
        is_new = key in self._unread or (entry is None and key not in self._pending)
        self._unread.discard(key)
        if entry is None and is_new:
            self._begin(Question(key, request, stage, direction))
        if entry is None:
            try:  # shielded: whoever waits may be cancelled, the answer is paid for all the same
                entry = await asyncio.shield(self._pending[key])
            except RejectedRequest as error:
                if self.model not in self.journal.models:  # hardly the fault of this request alone
                    raise
                if is_new:
                    self._sender.circuit.note(str(error))
                raise RefusedAnswer(str(error)) from error
            except FailedRequest as error:
                raise FailedAnswer(str(error)) from error
        if not is_new:
            self.usage.setdefault((stage, direction), Usage()).add(entry, replayed=True)
        return entry, is_new

    def _begin(self, question: Question) -> None:
        """Ask what nobody has asked yet."""
        if self.batches is not None:
            self._defer(question, self.batches)
        if self._is_draining:  # an answer of no use has just come, and this is its second attempt
            raise asyncio.CancelledError
        task = self._pending[question.key] = asyncio.create_task(self._pay(question))
        task.add_done_callback(lambda task: self._settle(question.key, task))

    def _defer(self, question: Question, batches: Batches) -> NoReturn:
        """Leave a question to the next batch. What the budget has no room for waits until those before it have their bills."""
        if not batches.holds(question.key):
            dollars = BATCH_SHARE * self._sender.worst_case(question.request)
            try:
                self.budget.commit(dollars)
            except BudgetSpent:
                if not batches.waiting:
                    raise
            else:
                batches.defer(replace(question, dollars=dollars, guess=guess_tokens(question.request["messages"])))
        raise Deferred("the answer comes with a batch")

    async def _pay(self, question: Question) -> Entry:
        def lose(dollars: float | None) -> None:
            self._put(lost(question.stage, question.direction, self.model, dollars))

        return self._keep(question, await self._sender.send(question.request, lose))

    def _keep(self, question: Question, reply: Reply) -> Entry:
        place = {"stage": question.stage, "direction": question.direction}
        return self._put(Entry(key=question.key, model=self.model, **place, **vars(reply)))

    def _put(self, entry: Entry) -> Entry:
        self.journal.put(entry)
        self.usage.setdefault((entry.stage, entry.direction), Usage()).add(entry, replayed=False)
        return entry

    def _read(self, text: str, finish: str, schema: type[Schema] | None, is_new: bool) -> Schema | str:
        """What an answer says; of a new one the circuit learns whether it was of use."""
        try:
            answer = read_answer(text, finish, schema)
        except AnswerError as fault:
            if is_new:
                self._sender.circuit.note(f"an answer of no use: {fault}")
            raise
        if is_new:
            self._sender.circuit.note(None)
        return answer

    def _settle(self, key: str, task: asyncio.Task) -> None:
        del self._pending[key]
        if not task.cancelled():
            task.exception()  # marks it as seen, for nobody may be waiting any more
