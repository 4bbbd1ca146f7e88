"""Import LiteLLM late, without network and quietly, and see what goes over its wire. The import takes seconds."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

MOST_BYTES = 64 * 2**20  # of a response, decompressed; the largest images of providers take about 30 MB


def load_litellm() -> ModuleType:
    """Import LiteLLM with the price list that it ships, and without its output to the terminal."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True
    _watch_responses()
    logger = logging.getLogger("LiteLLM")
    if logger.level == logging.NOTSET:  # the user did not set LITELLM_LOG
        logger.setLevel(logging.ERROR)  # its warnings about a model come with every request
    return litellm


@dataclass
class Exchange:
    """The newest response to a request: its status (0 if none came whole), headers and body."""

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def is_answer(self) -> bool:
        """Whether a whole body came with a status of success."""
        return 200 <= self.status < 300


EXCHANGE: ContextVar[Exchange | None] = ContextVar("exchange", default=None)  # of the request of this task
KEEP: ContextVar[Callable[[bytes], None] | None] = ContextVar("keep", default=None)  # writes a body down at once


@cache
def _watch_responses() -> None:
    """Let no response of a provider fill the memory or lead elsewhere, and keep its body before LiteLLM reads it.

    LiteLLM has no limit, takes a transport only for some providers, and loses the bodies that it cannot read.
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

    LiteLLMAiohttpTransport.handle_async_request = send_and_read  # type: ignore[method-assign]
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
