"""Import LiteLLM late, without network and quietly. The import takes seconds."""

from __future__ import annotations

import logging
import os
from functools import cache
from types import ModuleType

MOST_BYTES = 64 * 2**20  # of a response, decompressed; the largest images of providers take about 30 MB


def load_litellm() -> ModuleType:
    """Import LiteLLM with the price list that it ships, and without its output to the terminal."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True
    _bound_responses()
    logger = logging.getLogger("LiteLLM")
    if logger.level == logging.NOTSET:  # the user did not set LITELLM_LOG
        logger.setLevel(logging.ERROR)  # its warnings about a model come with every request
    return litellm


@cache
def _bound_responses() -> None:
    """Let no response of a provider fill the memory: LiteLLM has no limit, and takes a transport only for some."""
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
        return httpx.Response(response.status_code, headers=headers, content=bytes(body), request=request)

    LiteLLMAiohttpTransport.handle_async_request = send_and_read  # type: ignore[method-assign]


_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")  # no longer true of the body
