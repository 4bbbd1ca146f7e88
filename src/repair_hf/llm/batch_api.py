"""The batch API of a provider, through LiteLLM: requests go in as a file, answers come out as a file."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from repair_hf.llm.errors import (
    LATER,
    Blocked,
    Exchange,
    PassingError,
    ProviderError,
    ReportedError,
    as_error,
    json_in,
    may_be_answered,
    message_in,
    reason_of,
)
from repair_hf.llm.ledger import Reply
from repair_hf.llm.loading import find_provider, load_litellm
from repair_hf.llm.provider import EXCHANGE, LiteLLM, blocked, raise_if_elsewhere, read_reply, watch_responses
from repair_hf.llm.reader import parse_body
from repair_hf.llm.sending import Retries
from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

TOO_LARGE = "token_limit_exceeded"  # more tokens than the provider queues
PROVIDERS = ("openai", "azure", "vertex_ai", "litellm_proxy")  # LiteLLM passes batches of OpenAI's form to these
ENDPOINT = "/v1/chat/completions"
TIMEOUT = 600.0  # seconds; a file may have a hundred megabytes
LATE = 600.0  # seconds; a batch without files is given up so long after its end
ENDED = ("completed", "failed", "expired", "cancelled")


# The key of a request in a finished batch, and its reply or why there is none.
Answer = tuple[str, Reply | PassingError | ProviderError]


class Finished(NamedTuple):
    """What a batch that ended brought, and how many further requests may be billed; None for all."""

    answers: list[Answer]
    lost: int | None


def batch_route(model: str) -> tuple[str, str]:
    """Return the model's name at its provider, and the provider; it must have a batch API in LiteLLM."""
    name, route = find_provider(model)
    if route not in PROVIDERS:
        raise UserError(
            f"--batch: LiteLLM supports no batch API for {model}, only for ids that begin with "
            f"{', '.join(f'{provider}/' for provider in PROVIDERS)}. For Gemini use vertex_ai/gemini-3.5-flash-lite "
            "and set GCS_BATCH_BUCKET_NAME to a Google Cloud Storage bucket. Leave --batch out otherwise."
        )
    return name, route


class BatchAPI:
    """Submits batches and fetches their results."""

    def __init__(self, model: str, *, base_url: str | None, retries: Retries) -> None:
        self.model, self._retries = model, retries
        self._provider = LiteLLM(model, base_url=base_url, timeout=TIMEOUT)
        self._name, self._route = batch_route(model)
        self._access = {"custom_llm_provider": self._route, "api_base": base_url, "timeout": TIMEOUT}

    def line(self, key: str, request: dict[str, Any]) -> bytes:
        """Return a request as a line of the batch file."""
        row = {"custom_id": key, "method": "POST", "url": ENDPOINT, "body": self._body(request)}
        return json.dumps(row).encode("ascii") + b"\n"

    async def upload(self, name: str, lines: bytes) -> str:
        """Upload the file of a batch; return the provider's id of the file."""
        content = (f"{name}.jsonl", lines, "application/jsonl")
        return (await self._call("create_file", file=content, purpose="batch")).id

    async def hand_in(self, file: str) -> str:
        """Create a batch from a file; return the provider's id of the batch.

        After an error that leaves open whether it was created, it is only looked for: it may be listed late.
        """
        wanted = {"completion_window": "24h", "endpoint": ENDPOINT, "input_file_id": file}
        is_uncertain = False

        async def create() -> str:
            nonlocal is_uncertain
            if is_uncertain:
                if found := await self.find(file):
                    return found
                raise PassingError("the provider failed as a batch was created, and does not list it")
            try:
                return (await self._send("create_batch", **wanted)).id
            except PassingError as error:
                is_uncertain = error.is_server_fault or error.may_be_billed
                raise

        return await self._insist(create)

    async def find(self, file: str) -> str | None:
        """Return the provider's id of the batch that was created from a file, if there is one."""
        after = None
        while True:
            batches, after = _page(await self._call("list_batches", after=after, limit=100))
            for batch in batches:
                if batch.input_file_id == file:
                    return batch.id
            if after is None:
                return None

    async def fetch(self, id: str) -> Finished | None:
        """Return the results of a batch; None while it is in progress.

        Raises:
            BatchRefused: If the provider did not accept it.
        """
        batch = await self._call("retrieve_batch", id, model=self.model)
        files = [file for file in (batch.output_file_id, batch.error_file_id) if file]
        if batch.status not in ENDED or (batch.status == "completed" and not files and _is_fresh(batch)):
            return None
        if batch.status == "failed" and not files:
            faults = (batch.errors.data if batch.errors else None) or ()
            reasons = [reason_of(fault.message) for fault in faults]
            reason = f"{self.model} did not accept a batch: {'; '.join(reasons) or 'no reason given'}"
            raise BatchRefused(reason, is_too_large=any(fault.code == TOO_LARGE for fault in faults))
        answers = [answer for file in files for answer in self._read((await self._call("file_content", file)).text)]
        if batch.status == "completed":
            return Finished(answers, None)
        logger.info("%s: batch %s is %s; what it left is submitted again.", self.model, id, batch.status)
        counted = batch.request_counts.completed if batch.request_counts else None
        replies = sum(isinstance(outcome, Reply) for _, outcome in answers)
        return Finished(answers, None if counted is None else max(counted - replies, 0))

    def _body(self, request: dict[str, Any]) -> dict[str, Any]:
        fitted = self._provider.fitted(request)
        messages = fitted.pop("messages")
        del fitted["model"]
        if self._route in ("openai", "azure"):  # some of their models rename `max_tokens`, or accept no temperature
            params = load_litellm().utils.get_optional_params(
                model=self._name, custom_llm_provider=self._route, drop_params=True, **fitted
            )
            fitted = {name: value for name, value in params.items() if name not in ("stream", "extra_body")}
        return {"model": self._name, "messages": messages, **fitted}

    def _read(self, content: str) -> Iterator[Answer]:
        """Yield the rows of a file; one that cannot be read is as if it were missing."""
        for line in content.split("\n"):  # `splitlines` would also cut at characters inside an answer
            row = parse_body(line)
            if not isinstance(row, dict) or not isinstance(row.get("custom_id"), str):
                continue
            response = row["response"] if isinstance(row.get("response"), dict) else {}
            try:
                body = response.get("body") or {"error": row.get("error")}
                yield row["custom_id"], self._reply(response.get("status_code"), body)
            except (PassingError, ProviderError) as fault:
                yield row["custom_id"], fault

    def _reply(self, status: Any, body: Any) -> Reply:
        if status == 200:
            return read_reply(body, self.model, batch=True)
        fault = as_error(ReportedError(status if isinstance(status, int) else _status_in(body), body), self.model)
        if isinstance(fault, Blocked):
            return blocked(fault, self.model)
        raise fault

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return await self._insist(lambda: self._send(name, *args, **kwargs))

    async def _insist(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """Call until it succeeds. No call of this file is billed."""
        attempt = 1
        while True:
            try:
                return await send()
            except PassingError as error:
                if attempt == self._retries.attempts:
                    reason = f"{self.model} failed {attempt} times in a row, at last with: {error}"
                    raise ProviderError(f"{reason}. {LATER}") from error
                wait = self._retries.wait_after(error, attempt, self.model)
            await asyncio.sleep(wait)
            attempt += 1

    async def _send(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call one of LiteLLM's functions, once."""
        litellm = load_litellm()
        import openai
        from litellm.llms.base_llm.chat.transformation import BaseLLMException  # seen with litellm 1.106

        watch_responses()
        call = getattr(litellm, name)  # in a thread: the asyncio functions leave connections open
        exchange = Exchange()
        EXCHANGE.set(exchange)
        try:
            return await asyncio.to_thread(call, *args, **kwargs, **self._access, max_retries=0, num_retries=0)
        except Exception as error:
            raise_if_elsewhere(exchange, self.model)
            if isinstance(error, openai.APIConnectionError):
                raise PassingError(reason_of(error), may_be_billed=may_be_answered(error)) from None
            if isinstance(error, openai.APIStatusError | BaseLLMException):
                raise as_error(error, self.model, exchange) from None
            if isinstance(error, openai.OpenAIError | ValueError):  # no key, or no bucket for Vertex AI's files
                raise ProviderError(f"{self.model} cannot be asked for a batch: {reason_of(error)}") from None
            raise


def _is_fresh(batch: Any) -> bool:
    """Return whether a batch has just been completed, so that its files may still be named."""
    return time.time() < (batch.completed_at or 0) + LATE


def _page(page: Any) -> tuple[list[Any], str | None]:
    """Return the batches of one page and the cursor of the next, if any. Vertex AI's pages are dicts in LiteLLM."""
    if isinstance(page, dict):
        return page["data"], page["next_page_token"]
    return page.data, page.data[-1].id if page.has_more else None


def _status_in(body: Any) -> int:
    """Return the status that Vertex AI quotes in a failed row; a failed precondition concerns the whole batch."""
    quoted = json_in(message_in(body))
    error = quoted.get("error") if isinstance(quoted, dict) else None
    code = error.get("code") if isinstance(error, dict) and error.get("status") != "FAILED_PRECONDITION" else None
    return code if isinstance(code, int) and 400 <= code < 600 else 500


class BatchRefused(ProviderError):
    """The provider rejected a batch and answered none of its requests; smaller ones may fit (`is_too_large`)."""

    def __init__(self, reason: str, *, is_too_large: bool = False) -> None:
        super().__init__(reason)
        self.is_too_large = is_too_large
