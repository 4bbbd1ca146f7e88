"""Send one request to a provider over LiteLLM, once.

Retries are left to `sending`: those of LiteLLM and of the SDKs below it are off, because nested retries multiply.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any, Literal

from repair_hf.llm.calls import without_usage
from repair_hf.llm.cost import STATED, bill, price_per_token
from repair_hf.llm.errors import (
    Blocked,
    Exchange,
    PassingError,
    ProviderError,
    RejectedRequest,
    ReportedError,
    UnreadableBody,
    as_error,
)
from repair_hf.llm.ledger import Reply
from repair_hf.llm.loading import find_provider, key_names, load_litellm, mapped
from repair_hf.llm.reader import Reading, parse_body, read_body
from repair_hf.runtime.redaction import printable, use_keys, without_secrets

__all__ = ["LiteLLM", "PassingError", "Provider", "ProviderError", "RejectedRequest", "Reply"]

logger = logging.getLogger(__name__)

# Their servers enforce a JSON schema for any model, though LiteLLM's table, which goes by model, does not say so.
_TAKE_ANY_SCHEMA = ("hosted_vllm", "ollama", "ollama_chat")

PLAIN_AFTER = 2  # answers of 5xx to a schema: some servers do not say that they reject it
MOST_BYTES = 64 * 2**20  # of a response, decompressed; the largest images of providers take about 30 MB
MARGIN = 1.0  # seconds that LiteLLM's own time-outs get, which know whether a connection was made

# Answers a request in the OpenAI chat format: LiteLLM below, or the toy world's oracle.
Provider = Callable[[Mapping[str, Any]], Awaitable[Reply]]


EXCHANGE: ContextVar[Exchange | None] = ContextVar("exchange", default=None)  # of the request of this task
KEEP: ContextVar[Callable[[bytes], None] | None] = ContextVar("keep", default=None)  # writes a body down at once


class LiteLLM:
    """Any provider that LiteLLM knows, or a custom endpoint.

    Args:
        base_url: URL of a custom endpoint with the protocol of the model id's provider; None for the provider's own.
        timeout: Seconds until a request counts as failed.

    Raises:
        UserError: If the model id names no provider that LiteLLM knows.
    """

    def __init__(self, model: str, *, base_url: str | None, timeout: float) -> None:
        self.model, self.base_url, self.timeout = model, base_url, timeout
        use_keys(key_names(model))
        self._form = _answer_form(load_litellm(), model, *find_provider(model))
        self._faults = 0
        self._may_try_schema = self._form == "free" and base_url is not None

    async def __call__(self, request: Mapping[str, Any]) -> Reply:
        if not self._may_try_schema or "response_format" not in request:
            return await self._send(self.fitted(request))
        is_plain = self._faults >= PLAIN_AFTER
        try:
            if is_plain:
                reply = await self._send(self.fitted(request))
            else:
                reply, self._form = await self._send(request), "schema"
        except RejectedRequest:
            if is_plain:
                raise
            reply, is_plain = await self._send(self.fitted(request)), True
        except PassingError as error:
            if error.is_server_fault:
                self._faults = 0 if is_plain else self._faults + 1
            raise
        if is_plain and self._may_try_schema:  # of several requests at once the first one says so
            logger.info("%s rejects structured output; requests are sent without it.", request["model"])
        self._may_try_schema = False
        return reply

    async def _send(self, fitted: Mapping[str, Any]) -> Reply:
        litellm = load_litellm()
        model: str = fitted["model"]
        effort = fitted.get("reasoning_effort")
        if effort and mapped(model, effort).get("thinking", {}).get("type") in ("enabled", "adaptive"):
            fitted = {**fitted, "temperature": None}  # a Claude that thinks rejects any but its own
        call = litellm.acompletion(
            **fitted,
            api_base=self.base_url,
            timeout=self.timeout,
            drop_params=True,  # not every provider accepts a seed
            max_retries=0,
            num_retries=0,
        )
        try:
            response, body = await response_of(call, model, self.timeout)
            return read_reply(parse_body(body) or body, model, response)
        except Blocked as error:
            return blocked(error, model)

    async def read(self, body: bytes) -> Reply:
        """Read a body that a killed process has received."""
        return read_reply(parse_body(body) or body, self.model)

    def fitted(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request with as much of its `response_format` as the model supports."""
        fitted = dict(request)
        if "response_format" not in fitted or self._form == "schema":
            return fitted
        del fitted["response_format"]
        return fitted | ({"response_format": {"type": "json_object"}} if self._form == "object" else {})


def blocked(error: Blocked, model: str) -> Reply:
    """Return what stands for an answer that the provider's filter blocked."""
    return Reply(str(error), "content_filter", 0, 0, 0.0, model)


async def response_of(call: Awaitable[Any], model: str, seconds: float) -> tuple[Any, bytes]:
    """Await a call of LiteLLM, whose own time-outs only limit the wait for the next byte.

    Returns:
        What LiteLLM makes of the response, None if it makes nothing of it; and the body, empty if LiteLLM did not ask
        over its asynchronous transport.

    Raises:
        PassingError, ProviderError, Blocked: If it fails, or takes longer in all.
    """
    import openai  # LiteLLM raises its exceptions

    watch_responses()
    exchange = Exchange()
    before = EXCHANGE.set(exchange)
    try:
        async with asyncio.timeout(seconds + MARGIN):
            return await call, exchange.body
    except TimeoutError:
        raise PassingError(f"no whole response after {seconds:g} s", may_be_billed=True) from None
    except Exception as error:  # of LiteLLM's, by any odd field of a body
        if exchange.is_answer:
            return None, exchange.body
        raise_if_elsewhere(exchange, model)
        if not isinstance(error, openai.APIError):
            raise
        raise as_error(error, model, exchange) from None  # the traceback of LiteLLM's exception could show a key
    finally:
        EXCHANGE.reset(before)


@cache
def watch_responses() -> None:
    """Let no response of a provider fill the memory or lead elsewhere, and keep its body before LiteLLM reads it.

    LiteLLM has no limit, takes a transport only for some providers, and loses the bodies that it cannot read. So two
    classes are changed for the whole process. Seen with litellm 1.106 and httpx 0.28.
    """
    import httpx
    from litellm.llms.custom_httpx.aiohttp_transport import LiteLLMAiohttpTransport

    send = LiteLLMAiohttpTransport.handle_async_request

    async def send_and_read(self: LiteLLMAiohttpTransport, request: httpx.Request) -> httpx.Response:
        response, body = await send(self, request), bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > MOST_BYTES:
                await response.aclose()
                raise httpx.ReadError(f"the response is larger than {MOST_BYTES >> 20} MiB", request=request)
        headers = [pair for pair in response.headers.multi_items() if pair[0] not in _OF_THE_WIRE]
        whole = httpx.Response(response.status_code, headers=headers, content=bytes(body), request=request)
        _stay(whole, request)
        exchange, keep = EXCHANGE.get(), KEEP.get()
        if exchange is not None:
            exchange.status, exchange.headers, exchange.body = whole.status_code, whole.headers, whole.content
            if keep is not None and exchange.is_answer:
                keep(whole.content)
        return whole

    LiteLLMAiohttpTransport.handle_async_request = send_and_read
    send_in_thread = httpx.HTTPTransport.handle_request

    def send_and_stay(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        response, exchange = send_in_thread(self, request), EXCHANGE.get()
        if exchange is not None:  # a batch; others may use httpx for something else
            _stay(response, request)
            exchange.status, exchange.headers = response.status_code, response.headers
        return response

    httpx.HTTPTransport.handle_request = send_and_stay  # type: ignore[method-assign]


def _stay(response: Any, request: Any) -> None:
    """Follow no redirect to another host: keys and pictures would go along."""
    if response.has_redirect_location:
        here, there = request.url, request.url.join(response.headers["location"])
        is_upgrade = here.scheme == "http" and there.scheme == "https" and here.host == there.host
        if (here.scheme, here.host, here.port) != (there.scheme, there.host, there.port) and not is_upgrade:
            response.headers[ELSEWHERE] = response.headers.pop("location")


ELSEWHERE = "x-not-followed"
_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")  # no longer true of the body


def raise_if_elsewhere(exchange: Exchange, model: str) -> None:
    """Raise an error if the response is a redirect to another host."""
    if ELSEWHERE in exchange.headers:
        raise ProviderError(
            f"{model} answers with a redirect to another host, which is not followed: "
            f"{printable(without_secrets(exchange.headers[ELSEWHERE]))}. Give its address as base URL if you trust it."
        ) from None


def _answer_form(litellm: Any, model: str, name: str, provider: str) -> Literal["schema", "object", "free"]:
    """Return what format can surely be enforced. A model that LiteLLM does not know might reject `response_format`."""
    if provider in _TAKE_ANY_SCHEMA or litellm.supports_response_schema(model=name, custom_llm_provider=provider):
        return "schema"
    is_known = price_per_token(model) is not None and model not in STATED
    takes = litellm.get_supported_openai_params(model=name, custom_llm_provider=provider) or ()
    return "object" if "response_format" in takes and is_known else "free"


def read_reply(value: Any, model: str, response: Any = None, *, batch: bool = False) -> Reply:
    """Return the reply in a parsed body, or else in LiteLLM's response.

    Raises:
        UnreadableBody, PassingError, ProviderError: As `read_response`.
    """
    try:
        found = read_response(value, model, response)
    except Blocked as error:
        return blocked(error, model)
    dollars = bill(found, model, batch=batch)
    reply = Reply(found.text, found.finish, *dollars, without_secrets(found.model or model))
    return without_usage(reply._replace(answered_by=model)) if found.is_odd else reply


def read_response(value: Any, model: str, response: Any = None) -> Reading:
    """Read a parsed body, or else LiteLLM's response.

    Raises:
        UnreadableBody, PassingError, ProviderError, Blocked: If it holds an error, or nothing that can be read.
    """
    found = read_body(value)
    if found is None and response is not None:
        found = _read_shaped(response.model_dump_json(warnings=False).encode())
    if found is None:
        raise UnreadableBody(model, value)
    if found.error:
        code = found.error.get("code") if isinstance(found.error, dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else 502
        error = as_error(ReportedError(status, {"error": found.error}), model)
        if isinstance(error, PassingError):
            error.may_be_billed = bool(found.tokens and found.tokens.completion) or found.is_odd
        raise error
    return found


def _read_shaped(body: bytes) -> Reading | None:
    """Read what LiteLLM made of a body, and keep it in the body's place; None if it says nothing."""
    found = read_body(parse_body(body))
    if found is None or not (found.text or found.word or found.pictures or found.addresses or found.error):
        return None
    if keep := KEEP.get():  # a later process could not read the body
        keep(body)
    return found
