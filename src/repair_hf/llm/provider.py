"""Send one request to a provider over LiteLLM, once.

Retries are left to `sending`: those of LiteLLM and of the SDKs below it are off, because nested retries multiply.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

from repair_hf.llm.calls import without_usage
from repair_hf.llm.cost import STATED, price_per_token
from repair_hf.llm.errors import (
    Blocked,
    PassingError,
    ProviderError,
    RejectedRequest,
    ReportedError,
    UnreadableBody,
    as_error,
)
from repair_hf.llm.ledger import Reply
from repair_hf.llm.loading import ELSEWHERE, EXCHANGE, Exchange, load_litellm
from repair_hf.llm.reader import Reading, parse_body, read_body
from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import holds_key, printable, use_keys, without_secrets

__all__ = ["LiteLLM", "PassingError", "Provider", "ProviderError", "RejectedRequest", "Reply"]

logger = logging.getLogger(__name__)

# Their servers enforce a JSON schema for any model, though LiteLLM's table, which goes by model, does not say so.
_TAKE_ANY_SCHEMA = ("hosted_vllm", "ollama", "ollama_chat")

LEAKED_KEY = "leaked_key"  # in place of why the model stopped: the answer held an API key, and was not kept
THINKING_TOKENS = 4096  # mostly some hundred suffice; an answer that is cut off gets more
PLAIN_AFTER = 2  # answers of 5xx to a schema: some servers do not say that they reject it
MARGIN = 1.0  # seconds that LiteLLM's own time-outs get, which know whether a connection was made

# Answers a request in the OpenAI chat format: LiteLLM below, or the toy world's oracle.
Provider = Callable[[Mapping[str, Any]], Awaitable[Reply]]


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
        is_plain, self._faults = self._faults == PLAIN_AFTER, 0 if self._faults == PLAIN_AFTER else self._faults
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
            self._faults += error.is_server_fault and not is_plain
            raise
        if is_plain and self._may_try_schema:  # of several requests at once the first one says so
            logger.info("%s rejects structured output; requests are sent without it.", request["model"])
        self._may_try_schema = False
        return reply

    async def _send(self, fitted: Mapping[str, Any]) -> Reply:
        litellm = load_litellm()
        model: str = fitted["model"]
        effort = fitted.get("reasoning_effort")
        if effort and _mapped(model, effort).get("thinking", {}).get("type") in ("enabled", "adaptive"):
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
        try:
            return read_reply(parse_body(body) or body, self.model)
        except Blocked as error:
            return blocked(error, self.model)

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


def raise_if_elsewhere(exchange: Exchange, model: str) -> None:
    """Raise an error if the response is a redirect to another host."""
    if ELSEWHERE in exchange.headers:
        raise ProviderError(
            f"{model} answers with a redirect to another host, which is not followed: "
            f"{printable(without_secrets(exchange.headers[ELSEWHERE]))}. Give its address as base URL if you trust it."
        ) from None


def find_provider(model: str) -> tuple[str, str]:
    """Return the model's name at its provider, and the provider.

    Raises:
        UserError: If the model id names no provider that LiteLLM knows.
    """
    litellm = load_litellm()
    try:
        name, provider, _, _ = litellm.get_llm_provider(model)
    except litellm.BadRequestError as error:
        raise UserError(
            f"{model!r} names no provider. Write it as provider/model, or as openai/NAME with the base URL of a "
            "compatible server."
        ) from error
    return name, provider


def check_key(model: str, base_url: str | None) -> None:
    """Check that a key of the model's provider is set, where it needs one.

    Raises:
        UserError: If none is set, or each is empty or holds a line break.
    """
    litellm = load_litellm()
    missing = litellm.validate_environment(model, api_base=base_url)["missing_keys"]
    named = sorted(name for name in missing if name.endswith("_API_KEY"))
    found = key_names(model)
    use_keys(found)
    if named == sorted(missing) and named and not found and litellm.api_key is None:
        raise UserError(f"No API key for {model}: set {' or '.join(named)} (any value for your own server).")
    if found and not any(os.environ[name].isprintable() and os.environ[name].strip() for name in found):
        raise UserError(f"{found[0]} is empty or holds a line break, so {model} cannot be asked; set it anew.")


def key_names(model: str) -> list[str]:
    """Return the environment variables that hold a key of the model's provider."""
    _, provider = find_provider(model)
    named = load_litellm().validate_environment(model)["missing_keys"]
    # LiteLLM reads more variables than it names, such as TOGETHER_API_KEY.
    begins = (provider[:5].upper(), *(name[:5] for name in named), *_KEYS_BEGIN.get(provider, ()))
    return sorted(name for name in os.environ if name.startswith(begins) and re.search("KEY|TOKEN", name))


_KEYS_BEGIN = {"gemini": ("GOOGLE_",), "huggingface": ("HF_",), "bedrock": ("AWS_",)}


def thinking_room(model: str, reasoning_effort: str | None) -> int:
    """Return how many tokens to add to `max_tokens`, because a reasoning model counts its thoughts towards it."""
    litellm = load_litellm()
    if not litellm.supports_reasoning(model):
        return 0
    if reasoning_effort != "none":
        return THINKING_TOKENS
    params = _mapped(model, "none")
    # Some models cannot turn reasoning off, and LiteLLM drops the parameter for some of these.
    is_off = params.get("reasoning_effort") == "none" or params.get("thinkingConfig", {}).get("thinkingBudget") == 0
    return 0 if is_off else THINKING_TOKENS


@cache
def _mapped(model: str, reasoning_effort: str) -> dict[str, Any]:
    """Return what LiteLLM makes of an effort for this model."""
    name, provider = find_provider(model)
    return load_litellm().utils.get_optional_params(
        model=name, custom_llm_provider=provider, reasoning_effort=reasoning_effort, drop_params=True
    )


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
        UnreadableBody, PassingError, ProviderError, Blocked: If it holds an error, or nothing that can be read.
    """
    found = read_body(value)
    if found is None and response is not None:
        found = read_body(response.model_dump()) or Reading(finish="empty")
    if found is None:
        raise UnreadableBody(model, value)
    raise_error_in(found, model)
    text, finish = found.text, found.finish
    reply = Reply(text, finish, *_bill(found, model, batch=batch), without_secrets(found.model or model))
    if found.is_odd:
        reply = without_usage(replace(reply, answered_by=model))
    if holds_key(text) or holds_key(finish):
        reply = replace(reply, text="", finish=LEAKED_KEY)
    return reply


def raise_error_in(found: Reading, model: str) -> None:
    """Raise the error that came with a status of success, if there is one."""
    if found.error:
        code = found.error.get("code") if isinstance(found.error, dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else 502
        error = as_error(ReportedError(status, {"error": found.error}), model)
        if isinstance(error, PassingError):
            error.may_be_billed = bool(found.tokens and found.tokens.completion) or found.is_odd
        raise error


def _bill(found: Reading, model: str, *, batch: bool) -> tuple[int, int, float | None]:
    """Return the tokens in and out, and the dollars; None if the bill is not known."""
    litellm, tokens, price = load_litellm(), found.tokens, price_per_token(model, batch=batch)
    if found.cost is not None and (price is None or model in STATED):
        return (tokens.prompt, tokens.completion, found.cost) if tokens else (0, 0, found.cost)
    if tokens is None:
        is_free = found.finish == "content_filter" and not found.is_odd
        return 0, 0, 0.0 if is_free or (price is not None and not any(price)) else None
    dollars = None
    if price is not None and ((tokens.prompt and (tokens.completion or not found.text)) or not any(price)):
        usage = litellm.Usage(
            prompt_tokens=tokens.prompt,
            completion_tokens=tokens.completion,
            prompt_tokens_details={"cached_tokens": tokens.cached},
        )
        if batch:
            dollars = sum(litellm.cost_calculator.batch_cost_calculator(usage, model))
        else:  # by the model that was asked for: LiteLLM's own figure uses the name in the response
            dollars = sum(litellm.cost_per_token(model=model, usage_object=usage))
    return tokens.prompt, tokens.completion, dollars
