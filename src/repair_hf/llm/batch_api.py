"""The batch API of a provider, through LiteLLM: requests go in as a file, answers come out as a file.

In:  lines of requests; the provider's id of a batch.
Out: that id; how far a batch is, and for each of its requests a `Reply`, or why there is none.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from repair_hf.llm.failures import Blocked, PassingFailure, ProviderError, RejectedRequest, as_failure, reason_of
from repair_hf.llm.journal import REJECTED
from repair_hf.llm.loading import load_litellm
from repair_hf.llm.provider import LiteLLM, Reply, read_reply
from repair_hf.llm.retries import Retries, insist
from repair_hf.runtime.options import UserError

PROVIDERS = (
    "openai",
    "azure",
    "vertex_ai",
    "litellm_proxy",
)  # whom LiteLLM hands requests of OpenAI's form as a batch
ENDPOINT = "/v1/chat/completions"
TIMEOUT = 600.0  # seconds; a file may hold a hundred megabytes
# Vertex AI has no status for a row that failed, but may quote what its API answered. A precondition is that of the whole batch.
_ROW_STATUS = re.compile(r'"code":\s*(4\d\d)\b(?!.*FAILED_PRECONDITION)', re.DOTALL)
ENDED = ("completed", "failed", "expired", "cancelled")


@dataclass(frozen=True)
class Answered:
    """One request of a batch that has ended: `reply`, or the `fault` for which there is none."""

    key: str
    reply: Reply | None
    fault: PassingFailure | ProviderError | None = None

    def is_rejection(self) -> bool:
        """Whether the provider did not accept this request."""
        return self.reply is not None and self.reply.finish == REJECTED


def batch_route(model: str) -> tuple[str, str]:
    """A model's name at its provider, and the provider.

    Raises:
        UserError: If LiteLLM reaches no batch API there.
    """
    name, route, _, _ = load_litellm().get_llm_provider(model)
    if route not in PROVIDERS:
        raise UserError(
            f"--batch: {model} has no batch API that LiteLLM reaches. It does for ids that begin with "
            f"{', '.join(f'{provider}/' for provider in PROVIDERS)}; Gemini has one as vertex_ai/gemini-2.5-flash, which keeps its "
            "files in the bucket of Google Cloud Storage that GCS_BATCH_BUCKET_NAME names. Leave --batch out otherwise."
        )
    return name, route


class BatchAPI:
    """Hands in batches and asks after them.

    Args:
        model: LiteLLM model id.
        base_url: Of a custom endpoint.
        retries: How long to believe in a provider that fails.

    Raises:
        UserError: If LiteLLM reaches no batch API of the model's provider.
    """

    def __init__(self, model: str, *, base_url: str | None, retries: Retries) -> None:
        self.model, self._retries = model, retries
        self._provider = LiteLLM(model, base_url=base_url, timeout=TIMEOUT)
        self._name, self._route = batch_route(model)
        self._door = {"custom_llm_provider": self._route, "api_base": base_url, "timeout": TIMEOUT}

    def line(self, key: str, request: dict[str, Any]) -> bytes:
        """A request as a line of the file that is handed in."""
        row = {"custom_id": key, "method": "POST", "url": ENDPOINT, "body": self._body(request)}
        return json.dumps(row).encode("ascii") + b"\n"

    async def upload(self, name: str, lines: bytes) -> str:
        """Send the file of a batch.

        Args:
            name: Of the file.
            lines: The requests.

        Returns:
            The provider's id of the file.
        """
        content = (f"{name}.jsonl", lines, "application/jsonl")
        return (await self._call("create_file", file=content, purpose="batch")).id

    async def hand_in(self, file: str) -> str:
        """Make a batch of a file; give back the provider's id of the batch."""
        wish = {"completion_window": "24h", "endpoint": ENDPOINT, "input_file_id": file}
        attempts = 0

        async def create() -> str:
            nonlocal attempts
            attempts += 1
            if attempts > 1 and (found := await self.find(file)):  # the request came through, its answer did not
                return found
            return (await self._send("create_batch", **wish)).id

        return await insist(create, self._retries, self.model)

    async def find(self, file: str) -> str | None:
        """The provider's id of the batch that was made of this file, if there is one. Not every provider keeps a name for it."""
        after = None
        while True:
            batches, after = _page(await self._call("list_batches", after=after, limit=100))
            for batch in batches:
                if batch.input_file_id == file:
                    return batch.id
            if after is None:
                return None

    async def fetch(self, id: str) -> list[Answered] | None:
        """What a batch has come to; None as long as it is in work.

        Raises:
            ProviderError: If the provider refused the batch as a whole.
        """
        batch = await self._call("retrieve_batch", id, model=self.model)
        files = [file for file in (batch.output_file_id, batch.error_file_id) if file]
        if batch.status not in ENDED or (batch.status == "completed" and not files):
            return None
        if batch.status == "failed" and not files:
            told = [fault.message for fault in (batch.errors.data if batch.errors else None) or ()]
            raise BatchRefused(f"{self.model} did not accept a batch: {'; '.join(told) or 'no reason given'}")
        found: list[Answered] = []
        for file in files:
            content = await self._call("file_content", file)
            found += self._read(content.text)
        return found

    def _body(self, request: dict[str, Any]) -> dict[str, Any]:
        fitted = self._provider.fitted(request)
        messages = fitted.pop("messages")
        del fitted["model"]
        if self._route in (
            "openai",
            "azure",
        ):  # some of their models call `max_tokens` otherwise, or take no temperature
            params = load_litellm().utils.get_optional_params(
                model=self._name, custom_llm_provider=self._route, drop_params=True, **fitted
            )
            fitted = {name: value for name, value in params.items() if name not in ("stream", "extra_body")}
        return {"model": self._name, "messages": messages, **fitted}

    def _read(self, content: str) -> Iterator[Answered]:
        for line in content.split("\n"):  # `splitlines` would also cut at signs that may stand inside an answer
            if not line.strip():
                continue
            row = json.loads(line)
            response = row.get("response") or {}
            try:
                reply = self._reply(response.get("status_code"), response.get("body") or {"error": row.get("error")})
                yield Answered(row["custom_id"], reply)
            except (PassingFailure, ProviderError) as fault:
                yield Answered(row["custom_id"], None, fault)

    def _reply(self, status: int | None, body: Any) -> Reply:
        litellm = load_litellm()
        if status == 200:
            response = litellm.utils.convert_to_model_response_object(
                response_object=body, model_response_object=litellm.ModelResponse()
            )
            reply = read_reply(response, self.model, litellm, [])
            if reply.dollars is None:
                return reply
            usage = response.get("usage") or litellm.Usage()
            return replace(reply, dollars=sum(litellm.cost_calculator.batch_cost_calculator(usage, self.model)))
        quoted = _ROW_STATUS.search(str(body))
        failure = as_failure(_RowError(status or (int(quoted[1]) if quoted else 500), body), self.model)
        if isinstance(failure, Blocked):
            return Reply(str(failure), "content_filter", 0, 0, 0.0, self.model)
        if isinstance(failure, RejectedRequest):  # this row's fault: without an answer it would be handed in for ever
            return Reply(str(failure), REJECTED, 0, 0, 0.0, self.model)
        raise failure

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return await insist(lambda: self._send(name, *args, **kwargs), self._retries, self.model)

    async def _send(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """One of LiteLLM's functions, once."""
        litellm = load_litellm()
        import openai
        from litellm.llms.base_llm.chat.transformation import BaseLLMException

        call: Callable[..., Any] = vars(litellm)[name]  # in a thread: the ones for asyncio leave connections open
        try:
            return await asyncio.to_thread(call, *args, **kwargs, **self._door, max_retries=0, num_retries=0)
        except openai.APIConnectionError as error:
            raise PassingFailure(reason_of(error)) from None
        except (openai.APIStatusError, BaseLLMException) as error:
            raise as_failure(error, self.model) from None
        except (openai.OpenAIError, ValueError) as error:  # no key, above all; or no bucket for Vertex AI's files
            raise ProviderError(f"{self.model} cannot be asked for a batch: {reason_of(error)}") from None


def _page(page: Any) -> tuple[list[Any], str | None]:
    """Batches of a list, and what to ask for more of it with, if there are more. Of Vertex AI's list LiteLLM makes a dict."""
    if isinstance(page, dict):
        return page["data"], page["next_page_token"]
    return page.data, page.data[-1].id if page.has_more else None


class BatchRefused(ProviderError):
    """The provider looked at a batch and answered none of its requests."""


class _RowError(Exception):
    """What a batch says of one request, in the form in which LiteLLM tells it of a request by itself."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(json.dumps(body))
        self.status_code, self.body = status, body
