"""The batch API of a provider, through LiteLLM: requests go in as a file, answers come out as a file."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from repair_hf.llm.errors import LATER, Blocked, PassingError, ProviderError, ReportedError, as_error, reason_of
from repair_hf.llm.ledger import Reply
from repair_hf.llm.loading import EXCHANGE, Exchange, load_litellm
from repair_hf.llm.provider import LiteLLM, blocked, find_provider, raise_if_elsewhere, read_reply
from repair_hf.llm.sending import Retries
from repair_hf.runtime.options import UserError
from repair_hf.runtime.texts import parse_json

PROVIDERS = ("openai", "azure", "vertex_ai", "litellm_proxy")  # LiteLLM passes batches of OpenAI's form to these
ENDPOINT = "/v1/chat/completions"
TIMEOUT = 600.0  # seconds; a file may have a hundred megabytes
# Vertex AI gives a failed row no status, but may quote the response of its API. A failed precondition concerns the
# whole batch.
_ROW_STATUS = re.compile(r'"code":\s*(4\d\d)\b(?!.*FAILED_PRECONDITION)', re.DOTALL)
ENDED = ("completed", "failed", "expired", "cancelled")


# The key of a request in a finished batch, and its reply or why there is none.
Answer = tuple[str, Reply | PassingError | ProviderError]


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
        """Create a batch from a file; return the provider's id of the batch."""
        wanted = {"completion_window": "24h", "endpoint": ENDPOINT, "input_file_id": file}
        attempts = 0

        async def create() -> str:
            nonlocal attempts
            attempts += 1
            if attempts > 1 and (found := await self.find(file)):  # the request arrived, its answer did not
                return found
            return (await self._send("create_batch", **wanted)).id

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

    async def fetch(self, id: str) -> list[Answer] | None:
        """Return the results of a batch; None while it is in progress."""
        batch = await self._call("retrieve_batch", id, model=self.model)
        files = [file for file in (batch.output_file_id, batch.error_file_id) if file]
        if batch.status not in ENDED or (batch.status == "completed" and not files):
            return None
        if batch.status == "failed" and not files:
            reasons = [reason_of(fault.message) for fault in (batch.errors.data if batch.errors else None) or ()]
            raise BatchRefused(f"{self.model} did not accept a batch: {'; '.join(reasons) or 'no reason given'}")
        return [answer for file in files for answer in self._read((await self._call("file_content", file)).text)]

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
        for line in content.split("\n"):  # `splitlines` would also cut at characters inside an answer
            if not line.strip():
                continue
            row = parse_json(line)
            response = row.get("response") or {}
            try:
                reply = self._reply(response.get("status_code"), response.get("body") or {"error": row.get("error")})
                yield row["custom_id"], reply
            except (PassingError, ProviderError) as fault:
                yield row["custom_id"], fault

    def _reply(self, status: int | None, body: Any) -> Reply:
        if status == 200:
            try:
                return read_reply(body, self.model, batch=True)
            except Blocked as error:
                return blocked(error, self.model)
        quoted = _ROW_STATUS.search(str(body))
        fault = as_error(ReportedError(status or (int(quoted[1]) if quoted else 500), body), self.model)
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
        from litellm.llms.base_llm.chat.transformation import BaseLLMException

        call = getattr(litellm, name)  # in a thread: the asyncio functions leave connections open
        exchange = Exchange()
        EXCHANGE.set(exchange)
        try:
            return await asyncio.to_thread(call, *args, **kwargs, **self._access, max_retries=0, num_retries=0)
        except Exception as error:
            raise_if_elsewhere(exchange, self.model)
            if isinstance(error, openai.APIConnectionError):
                raise PassingError(reason_of(error)) from None
            if isinstance(error, openai.APIStatusError | BaseLLMException):
                raise as_error(error, self.model) from None
            if isinstance(error, openai.OpenAIError | ValueError):  # no key, or no bucket for Vertex AI's files
                raise ProviderError(f"{self.model} cannot be asked for a batch: {reason_of(error)}") from None
            raise


def _page(page: Any) -> tuple[list[Any], str | None]:
    """Return the batches of one page and the cursor of the next, if any. Vertex AI's pages are dicts in LiteLLM."""
    if isinstance(page, dict):
        return page["data"], page["next_page_token"]
    return page.data, page.data[-1].id if page.has_more else None


class BatchRefused(ProviderError):
    """The provider rejected a batch and answered none of its requests."""
