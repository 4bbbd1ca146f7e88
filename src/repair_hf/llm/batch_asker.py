"""Ask through a provider's batch API: at a lower price, answered within a day.

One run submits the questions that the ledger cannot answer, and stops; a later run collects the answers. A question in
a batch has a row in the ledger from the start, and its `batch` says how far its batch has come:

1. `draft`: its request is in the memory of this process. If the process dies, the row is deleted.
2. `file:...`: the file is with the provider, by this id. A batch may have been created from it.
3. the provider's id of the batch.

A run may die between any two steps. The next run then looks for a file without a batch among the provider's batches
before it sends anything, so no batch is submitted twice and no paid answer is lost.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from repair_hf.llm.answers import FailedAnswer
from repair_hf.llm.asker import Asker, Deferred
from repair_hf.llm.ledger import LOST, BudgetSpent, Reply, Topic
from repair_hf.llm.provider import LATER, PassingError, ProviderError, as_error, find_provider, load_litellm, reason_of
from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import without_secrets
from repair_hf.runtime.run_folder import RunStopped

logger = logging.getLogger(__name__)

PROVIDERS = ("openai", "azure", "vertex_ai", "litellm_proxy")  # LiteLLM passes batches of OpenAI's form to these
ENDPOINT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")
TIMEOUT = 600.0  # seconds; a file may have a hundred megabytes
MOST_REQUESTS = 20_000  # per batch; providers allow at least 50,000 requests and 200 MB
MOST_BYTES = 100 * 2**20
DRAFT, FILE = "draft", "file:"  # begin what stands for a batch before the provider has named it


def batch_route(model: str) -> tuple[str, str]:
    """Return the model's name at its provider, and the provider; it must have a batch API in LiteLLM.

    Raises:
        UserError: If it has none.
    """
    name, route = find_provider(model)
    if route not in PROVIDERS:
        raise UserError(
            f"--batch: LiteLLM supports no batch API for {model}, only for ids that begin with "
            f"{', '.join(f'{provider}/' for provider in PROVIDERS)}. For Gemini use vertex_ai/gemini-3.5-flash-lite "
            "and set GCS_BATCH_BUCKET_NAME to a Google Cloud Storage bucket. Leave --batch out otherwise."
        )
    return name, route


class BatchAsker(Asker):
    """A language model whose answers come with batches; see `Asker`."""

    is_batch = True

    def __init__(self, model: str, *args: Any, **options: Any) -> None:
        super().__init__(model, *args, **options)
        self._name, self._route = batch_route(model)
        self._lines: dict[str, bytes] = {}  # of the next batch, by key
        self._size = 0
        self._failed: dict[str, str] = {}  # why a question has no answer, by key; the next run asks again

    async def collect(self) -> None:
        """Collect the answers of finished batches. Call it before any question.

        A request that a finished batch does not answer counts as billed, unless the provider gives a reason. The next
        run asks it again.
        """
        wanted = "SELECT DISTINCT batch FROM call WHERE batch IS NOT NULL AND owner IS NULL AND model = ?"
        for (name,) in self.ledger.database.execute(wanted, (self.model,)).fetchall():
            await self._collect(name)

    async def submit(self) -> None:
        """Submit the questions that wait. Call it after the last question.

        Raises:
            RunStopped: If questions are in batches that are not answered yet.
        """
        await self._submit()
        if count := self.ledger.in_batches(self.model):
            raise RunStopped(
                f"{count:,} requests are with {self.model} in batches, to be answered within a day. Rerun the same "
                "command to collect the answers."
            )

    async def _ask(self, key: str, topic: Topic, request: dict[str, Any]) -> tuple[Reply, bool]:
        """Put a question into the next batch. If a ceiling first needs the bills of others, it waits for a later run.

        Raises:
            Deferred: Always, unless a ceiling is reached, or a batch has just ended without this answer.
        """
        if key in self._failed:
            raise FailedAnswer(self._failed[key])
        shortage = await self.ledger.reserve(key, topic, self.worst(request), DRAFT)
        if shortage is None:
            row = {"custom_id": key, "method": "POST", "url": ENDPOINT, "body": self._body(request)}
            self._lines[key] = json.dumps(row).encode() + b"\n"
            self._size += len(self._lines[key])
            if len(self._lines) >= MOST_REQUESTS or self._size >= MOST_BYTES:
                await self._submit()
        elif not self.ledger.in_batches(self.model):
            raise BudgetSpent(shortage.reason)
        raise Deferred

    def _body(self, request: dict[str, Any]) -> dict[str, Any]:
        fitted = self.fitted(request)
        messages = fitted.pop("messages")
        del fitted["model"]
        if self._route in ("openai", "azure"):  # some of their models rename `max_tokens`, or accept no temperature
            params = load_litellm().utils.get_optional_params(
                model=self._name, custom_llm_provider=self._route, drop_params=True, **fitted
            )
            fitted = {name: value for name, value in params.items() if name not in ("stream", "extra_body")}
        return {"model": self._name, "messages": messages, **fitted}

    async def _submit(self) -> None:
        if not self._lines:
            return
        content = ("batch.jsonl", b"".join(self._lines.values()), "application/jsonl")
        keys = list(self._lines)
        self._lines, self._size = {}, 0
        file = (await self._call("create_file", file=content, purpose="batch")).id
        async with self.ledger.transaction(is_paid=True):
            update = "UPDATE call SET batch = ?, owner = NULL WHERE key = ?"
            self.ledger.database.executemany(update, [(f"{FILE}{file}", key) for key in keys])
        await self._move(f"{FILE}{file}", await self._create(file))
        logger.info("%s: submitted a batch of %d requests.", self.model, len(keys))

    async def _create(self, file: str) -> str:
        """Create the batch of a file, and return its id. After an error it is only looked for, never created twice."""
        request = {"completion_window": "24h", "endpoint": ENDPOINT, "input_file_id": file}
        try:
            return (await self._call_once("create_batch", **request)).id
        except PassingError as error:
            batch_id = await self._listed(file)
            if batch_id is None:
                raise ProviderError(f"{self.model} failed as a batch was created: {error}. {LATER}") from error
            return batch_id

    async def _listed(self, file: str) -> str | None:
        """Return the provider's id of the batch that was created from a file, if there is one."""
        after = None
        while True:
            page = await self._call("list_batches", after=after, limit=100)
            if isinstance(page, dict):  # Vertex AI's, in LiteLLM
                batches, after = page["data"], page["next_page_token"]
            else:
                batches, after = page.data, page.data[-1].id if page.has_more else None
            for batch in batches:
                if batch.input_file_id == file:
                    return batch.id
            if after is None:
                return None

    async def _collect(self, name: str) -> None:
        """Collect the answers of a batch, if it has ended."""
        if name.startswith(FILE):
            batch_id = await self._listed(name.removeprefix(FILE))
            if batch_id is None:  # it was never created
                await self._end(name, "DELETE FROM call")
                return
            await self._move(name, batch_id)
            name = batch_id
        batch = await self._call("retrieve_batch", name, model=self.model)
        if batch.status not in ENDED:
            return
        files = [file for file in (batch.output_file_id, batch.error_file_id) if file]
        if batch.status == "failed" and not files:
            await self._end(name, "DELETE FROM call")
            faults = (batch.errors.data if batch.errors else None) or ()
            reasons = "; ".join(str(fault.message) for fault in faults) or "no reason given"
            raise ProviderError(f"{self.model} did not accept a batch: {without_secrets(reasons)}. {LATER}")
        for file in files:
            content = (await self._call("file_content", file)).text
            for line in filter(None, content.split("\n")):  # `splitlines` would also cut inside an answer
                await self._settle(line)
        for key in await self._end(name, f"UPDATE call SET {LOST}"):
            self._failed[key] = "its batch ended without an answer; it may be billed"

    async def _settle(self, line: str) -> None:
        """Write the answer in a line of a batch's file; with a reason in its place, nothing is to be paid."""
        try:
            row = json.loads(line)
            key, response = row["custom_id"], row.get("response") or {}
            body = response.get("body") or {}
            is_answer = response.get("status_code") == 200
            reply = self.read(load_litellm().ModelResponse(**body)) if is_answer else None
        except (KeyError, TypeError, ValueError, AttributeError, PassingError) as error:
            logger.warning("%s: a line of a batch cannot be read: %s", self.model, reason_of(error))
            return
        labels = "SELECT stage, direction, model, prompts FROM call WHERE key = ? AND batch IS NOT NULL"
        topic = self.ledger.database.execute(labels, (key,)).fetchone()
        if topic is None:
            return
        if reply is not None:
            await self.ledger.answer(key, Topic(*topic), reply)
            self.collected.add(key)
        elif reason := row.get("error") or body.get("error"):
            await self.ledger.give_up(key, is_lost=False)
            self._failed[key] = without_secrets(f"the batch brought an error: {json.dumps(reason)}")

    async def _end(self, batch: str, change: str) -> list[str]:
        """Change what is left of a batch, and return the keys of its questions."""
        async with self.ledger.transaction(is_paid=True):
            rows = self.ledger.database.execute("SELECT key FROM call WHERE batch = ?", (batch,)).fetchall()
            self.ledger.database.execute(f"{change} WHERE batch = ?", (batch,))
        return [key for (key,) in rows]

    async def _move(self, before: str, after: str) -> None:
        async with self.ledger.transaction(is_paid=True):
            self.ledger.database.execute("UPDATE call SET batch = ? WHERE batch = ?", (after, before))

    async def _call(self, name: str, *args: Any, **request: Any) -> Any:
        """Call one of LiteLLM's functions, again after errors that pass; none of them is billed.

        Raises:
            ProviderError: If it fails.
        """
        attempt = 1
        while True:
            try:
                return await self._call_once(name, *args, **request)
            except PassingError as error:
                if attempt == self.retries.attempts:
                    raise ProviderError(f"{self.model} cannot be asked for a batch: {error}. {LATER}") from error
                wait = self.retries.wait_after(error, attempt)
            attempt += 1
            await asyncio.sleep(wait)

    async def _call_once(self, name: str, *args: Any, **request: Any) -> Any:
        request |= {"custom_llm_provider": self._route, "api_base": self.base_url, "timeout": TIMEOUT}
        function = getattr(load_litellm(), name)  # in a thread: LiteLLM's asyncio functions leave connections open
        try:
            return await asyncio.to_thread(function, *args, max_retries=0, num_retries=0, **request)
        except Exception as error:
            fault = as_error(error, self.model)
            if isinstance(fault, PassingError):
                raise fault from None
            raise ProviderError(f"{self.model} cannot be asked for a batch: {fault}") from None
