"""A chat model by id, which answers from its journal first and from the provider otherwise.

Equal questions become one request, and an unusable answer is followed by another attempt. Cost is counted by stage
and direction.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

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
from repair_hf.llm.attempts import allow_attempts, allowed_attempts
from repair_hf.llm.batches import Batches, Deferred, Question
from repair_hf.llm.budget import Budget, BudgetSpent
from repair_hf.llm.cost import Usage, price_per_token
from repair_hf.llm.failures import FailedRequest, ProviderError, RejectedRequest
from repair_hf.llm.journal import REJECTED, Entry, Journal, lost, request_key
from repair_hf.llm.prompts import SHIPPED, Prompts
from repair_hf.llm.provider import LiteLLM, Provider, Reply, thinking_room
from repair_hf.llm.sending import RequestOptions, Sender
from repair_hf.llm.tokens import guess_tokens
from repair_hf.runtime.run_folder import RunStopped

__all__ = ["AnswerError", "ChatModel", "Deferred", "ProviderError", "RefusedAnswer", "UnparsedAnswer"]

BATCH_SHARE = 0.5  # of the list price


class ChatModel:
    """A language model that answers from its journal first. Create and use it in one event loop.

    Args:
        model: LiteLLM model id, such as `gemini/gemini-3.5-flash-lite`; `openai/NAME` with `base_url` for a compatible
            server.
        journal: Keeps the answers. What it has paid counts as spent.
        provider: Answers instead of LiteLLM, at no cost: a model in this process.
        batches: Takes the questions that the journal cannot answer, instead of asking them at once.
        prompts: What is asked; each answer in the journal names their digest.

    Attributes:
        usage: What was asked and paid in this run, by (stage, direction).
        budget: What may be paid; anything else that costs money in the same run must use it too.
        attempts: How many attempts at a usable answer this run may make, those of earlier runs included.

    Raises:
        UserError: If the budget is in dollars and the model has no known price.
    """

    def __init__(
        self,
        model: str,
        *,
        journal: Journal,
        base_url: str | None = None,
        options: RequestOptions | None = None,
        provider: Provider | None = None,
        budget: Budget | None = None,
        batches: Batches | None = None,
        prompts: Prompts = SHIPPED,
    ) -> None:
        options = options or RequestOptions()
        self.model, self.journal, self.batches, self.prompts = model, journal, batches, prompts
        self.attempts = allowed_attempts(journal.path.parent, options.answer_attempts)
        self._thinking_room = 0 if provider else thinking_room(model, options.reasoning_effort)
        self._reasoning = {"reasoning_effort": options.reasoning_effort} if options.reasoning_effort else {}
        self.usage: dict[tuple[str, str], Usage] = {}
        self.budget = budget or Budget()
        self.budget.count(journal.dollars, journal.calls)
        price = (0.0, 0.0) if provider else price_per_token(model)
        provider = provider or LiteLLM(model, base_url=base_url, timeout=options.timeout)
        self._sender = Sender(model, provider, price=price, options=options, budget=self.budget)
        self._pending: dict[str, asyncio.Task[Entry]] = {}
        self._unread: set[str] = set()  # keys of answers that came with a batch in this run
        self._is_draining, self._prompt_digest = False, prompts.digest()

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
        attempts: int | None = None,
    ) -> Schema | str:
        """Ask a question; while the answer is unusable, ask again: `self.attempts` times in all, or fewer.

        The messages are in the OpenAI chat format. With `schema` the answer is JSON, returned as an instance of this
        pydantic model; without it, a text. The cost is counted by stage and direction, such as `audit` and `i2t`.
        `sample` distinguishes several answers to the same messages.

        Raises:
            AnswerError: If the answer is unusable; the run goes on without this row.
            Deferred: If the answer comes with a batch.
            RunStopped: If the run cannot go on.
        """
        first = request = self._request(messages, temperature, max_tokens, request_seed(seed, sample, attempt=0))
        if schema is not None:
            first["response_format"] = response_format(schema)
        most = self.attempts if attempts is None else min(attempts, self.attempts)
        attempt = 1
        while True:
            entry, is_new = await self._answer(request, sample, stage, direction)
            try:
                return self._read(schema, entry.text, entry.finish, is_new)
            except UnparsedAnswer as fault:
                if attempt >= most:
                    raise
                request = next_attempt(first, entry, fault) | {"seed": request_seed(seed, sample, attempt=attempt)}
            attempt += 1

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
        schema: type[Schema] | None = None,
    ) -> list[Schema | str | AnswerError]:
        """Ask for several answers to the same messages, as `ask` does; return each, or why it is unusable.

        With `together`, all are asked for in one request, which pays for the messages once. Answers that are missing
        in its reply, or unusable, are asked for one by one. `max_tokens` is the limit of each.
        """
        found: dict[int, Schema | str | AnswerError] = {}
        if together and samples > 1:
            request = self._request(messages, temperature, max_tokens, request_seed(seed, 0, attempt=0))
            if schema is not None:
                request["response_format"] = response_format(schema)
            with suppress(RefusedAnswer, FailedAnswer):  # by a server that does not support `n`
                entry, is_new = await self._answer({**request, "n": samples}, 0, stage, direction)
                found = self._read_choices(entry, schema, is_new)
        missing = [sample for sample in range(samples) if sample not in found]
        how: Any = {"stage": stage, "direction": direction, "temperature": temperature, "max_tokens": max_tokens}
        how |= {"schema": schema, "seed": seed}
        asked = (self.ask(messages, sample=sample, **how) for sample in missing)
        for sample, answer in zip(missing, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, AnswerError):
                raise answer
            found[sample] = answer
        return [found[sample] for sample in range(samples)]

    def _read_choices(
        self, entry: Entry, schema: type[Schema] | None, is_new: bool
    ) -> dict[int, Schema | str | AnswerError]:
        """Read the answers of one reply, by number; leave out the unusable ones, which are asked for again."""
        if entry.finish == REJECTED:
            raise RefusedAnswer(entry.text)
        found: dict[int, Schema | str | AnswerError] = {}
        for sample, (text, finish) in enumerate([(entry.text, entry.finish), *entry.others]):
            try:
                found[sample] = self._read(schema, text, finish, is_new)
            except RefusedAnswer as refusal:
                found[sample] = refusal
            except UnparsedAnswer:
                continue
        return found

    async def collect(self) -> None:
        """Collect the answers of finished batches; the others count as spent. Call it before any question.

        Raises:
            ProviderError: If the provider did not accept a batch or its requests; the answers it gave are kept.
        """
        if self.batches is not None:
            await self.batches.collect(self._keep_collected)
            self.budget.count(self.batches.promised, self.batches.waiting)

    def _keep_collected(self, question: Question, reply: Reply) -> None:
        if self.journal.get(question.key) is not None:
            return
        if reply.finish == REJECTED and self.model not in self.journal.models:
            raise ProviderError(reply.text)  # probably not only this request is at fault
        if reply.dollars is None:
            reply = replace(reply, at_most=question.dollars)
        entry = self._keep(question, reply)
        self.budget.count(entry.spent, calls=entry.is_answer)
        self._sender.prompts.learn(question.guess, reply.prompt_tokens)
        self._unread.add(question.key)

    async def drain(self) -> None:
        """Wait for the answers in flight and cancel the questions that were not sent: for a run that stops early."""
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
        """Get an answer from the journal, a request in flight or the provider; and whether it was just paid for."""
        key = request_key(request, sample)
        entry = self.journal.get(key)
        is_new = key in self._unread or (entry is None and key not in self._pending)
        self._unread.discard(key)
        if entry is None and is_new:
            self._begin(Question(key, request, stage, direction))
        if entry is None:
            try:  # shielded: the answer is paid for even if the caller is cancelled
                entry = await asyncio.shield(self._pending[key])
            except FailedRequest as error:
                raise FailedAnswer(str(error)) from error
        if not is_new:
            self.usage.setdefault((stage, direction), Usage()).add(entry, replayed=True)
        return entry, is_new

    def _begin(self, question: Question) -> None:
        """Send a question, or leave it to a batch."""
        if self.batches is not None:
            self._defer(question, self.batches)
        if self._is_draining:  # a second attempt, after an unusable answer
            raise asyncio.CancelledError
        task = self._pending[question.key] = asyncio.create_task(self._pay(question))
        task.add_done_callback(lambda task: self._settle(question.key, task))

    def _defer(self, question: Question, batches: Batches) -> NoReturn:
        """Add a question to the next batch; without room in the budget, it waits for the bills of those before it."""
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

        try:
            reply = await self._sender.send(question.request, lose)
        except RejectedRequest as error:
            if self.model not in self.journal.models:  # probably not only this request is at fault
                raise
            # Kept, or a resumed run, which replays the answers, would send only what is rejected, and stop.
            reply = Reply(str(error), REJECTED, 0, 0, 0.0, self.model)
        return self._keep(question, reply)

    def _keep(self, question: Question, reply: Reply) -> Entry:
        asked = {"key": question.key, "stage": question.stage, "direction": question.direction, "model": self.model}
        return self._put(Entry(**asked | vars(reply.without_secrets()), prompts=self._prompt_digest))

    def _put(self, entry: Entry) -> Entry:
        self.journal.put(entry)
        self.usage.setdefault((entry.stage, entry.direction), Usage()).add(entry, replayed=False)
        return entry

    def _read(self, schema: type[Schema] | None, text: str, finish: str, is_new: bool) -> Schema | str:
        """Read an answer; if it is new, note in the circuit whether it is usable."""
        try:
            answer = read_answer(text, finish, schema)
        except AnswerError as fault:
            try:
                if is_new:
                    self._sender.circuit.note(f"an unusable answer: {fault}")
            except RunStopped:  # the model may answer better when the run is started again
                allow_attempts(self.journal.path.parent, self.attempts + 1)
                raise
            raise
        if is_new:
            self._sender.circuit.note(None)
        return answer

    def _settle(self, key: str, task: asyncio.Task) -> None:
        del self._pending[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: nobody may be waiting any more
