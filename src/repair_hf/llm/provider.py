"""The provider: sends one request over LiteLLM, once.

In:  a request in the OpenAI chat format: model, messages, temperature, max_tokens, seed; `n`, `response_format` and `reasoning_effort`
     where wanted.
Out: a `Reply`; or `PassingFailure` where another attempt may succeed (no connection, time-out, 429, 5xx); or `ProviderError` where
     none will (a wrong key, no credit, a request that is not accepted), in the provider's words.

Retries belong to `retries` alone: those of LiteLLM and of the SDKs below it are off, for nested ones would multiply.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from repair_hf.llm.cost import price_per_token
from repair_hf.llm.failures import Blocked, PassingFailure, ProviderError, RejectedRequest, as_failure
from repair_hf.llm.loading import load_litellm
from repair_hf.runtime.options import UserError

__all__ = ["LiteLLM", "PassingFailure", "Provider", "ProviderError", "RejectedRequest", "Reply"]

# Their servers hold any model to a JSON schema, though LiteLLM's table, which goes by model, does not say so.
_TAKE_ANY_SCHEMA = ("hosted_vllm", "ollama", "ollama_chat")

THINKING_TOKENS = 4096  # mostly it takes some hundred; an answer that is cut off all the same gets more


@dataclass(frozen=True)
class Reply:
    """What came back for one request; see `journal.Entry` for the fields.

    `others` are the text and the finish of further answers, where the request asked for `n` of them; the tokens are those of all, and 0
    where the provider does not tell.
    """

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    dollars: float | None
    answered_by: str
    others: tuple[tuple[str, str], ...] = ()
    at_most: float = 0.0


# Whoever can answer a request: LiteLLM below, or a model in this process.
Provider = Callable[[Mapping[str, Any]], Awaitable[Reply]]


class LiteLLM:
    """Any provider that LiteLLM knows, or a custom endpoint.

    Args:
        model: LiteLLM model id.
        base_url: Of a custom endpoint that speaks the protocol of the model id's provider; None for the provider's own.
        timeout: Seconds until a request counts as failed.

    Raises:
        UserError: If the model id names no provider that LiteLLM knows.
    """

    def __init__(self, model: str, *, base_url: str | None, timeout: float) -> None:
        self.base_url, self.timeout = base_url, timeout
        litellm = load_litellm()
        try:
            name, provider, _, _ = litellm.get_llm_provider(model)
        except litellm.BadRequestError as error:
            raise UserError(
                f"{model!r} names no provider. Write it as provider/model, such as gemini/gemini-2.5-flash, or as openai/NAME "
                "with the base URL of a server that speaks that protocol."
            ) from error
        self._form = _answer_form(litellm, model, name, provider)

    async def __call__(self, request: Mapping[str, Any]) -> Reply:
        litellm = load_litellm()
        import openai  # LiteLLM's exceptions are this library's

        model, raw = request["model"], []
        try:
            response = await litellm.acompletion(
                **self.fitted(request),
                api_base=self.base_url,
                timeout=self.timeout,
                drop_params=True,  # not every provider takes a seed
                max_retries=0,
                num_retries=0,
                logger_fn=lambda details: raw.append(details.get("original_response")),
            )
        except openai.APIError as error:
            failure = as_failure(error, model)
            if isinstance(failure, Blocked):
                return Reply(str(failure), "content_filter", 0, 0, 0.0, model)
            raise failure from None  # the traceback of the one below would show the provider's words uncensored
        return read_reply(response, model, litellm, raw)

    def fitted(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request with as much of its `response_format` as the model takes."""
        fitted = dict(request)
        if "response_format" not in fitted or self._form == "schema":
            return fitted
        del fitted["response_format"]
        return fitted | ({"response_format": {"type": "json_object"}} if self._form == "object" else {})


def thinking_room(model: str, reasoning_effort: str | None) -> int:
    """How many tokens to allow beyond the answer's own: of a model that thinks first, thoughts count towards `max_tokens`."""
    litellm = load_litellm()
    if not litellm.supports_reasoning(model):
        return 0
    if reasoning_effort != "none":
        return THINKING_TOKENS
    name, provider, _, _ = litellm.get_llm_provider(model)
    told = litellm.utils.get_optional_params(
        model=name, custom_llm_provider=provider, reasoning_effort="none", drop_params=True
    )
    # Not every model can be kept from it, and of those that cannot, some are not even told.
    is_off = told.get("reasoning_effort") == "none" or told.get("thinkingConfig", {}).get("thinkingBudget") == 0
    return 0 if is_off else THINKING_TOKENS


def _answer_form(litellm: Any, model: str, name: str, provider: str) -> Literal["schema", "object", "free"]:
    """What the form of an answer can be bound to. A model that LiteLLM does not know might refuse to be bound at all."""
    if provider in _TAKE_ANY_SCHEMA or litellm.supports_response_schema(model=name, custom_llm_provider=provider):
        return "schema"
    takes = litellm.get_supported_openai_params(model=name, custom_llm_provider=provider) or ()
    return "object" if "response_format" in takes and price_per_token(model) is not None else "free"


def read_reply(response: Any, model: str, litellm: Any, raw: list[Any]) -> Reply:
    usage = response.get("usage") or litellm.Usage()
    said = [_said(choice) for choice in response.choices] or [("", "empty")]
    text, finish = said[0]
    # By the model that was asked for; LiteLLM's own figure goes by the name that stands in the response.
    price, is_told = price_per_token(model), usage.prompt_tokens and (usage.completion_tokens or not text)
    is_known = price is not None and (is_told or not any(price))
    dollars = sum(litellm.cost_per_token(model=model, usage_object=usage)) if is_known else None
    if finish == "content_filter" and not text:
        text = _why_blocked(raw)
    return Reply(
        text=text,
        finish=finish,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        dollars=dollars,
        answered_by=response.model or model,
        others=tuple(said[1:]),
    )


def _said(choice: Any) -> tuple[str, str]:
    """Text and finish of one answer."""
    refusal = (choice.message.get("provider_specific_fields") or {}).get("refusal")
    text = choice.message.content or refusal or ""
    text = text.encode("utf-8", "replace").decode()  # half a surrogate pair comes in JSON, but cannot be sent again
    return text, "refusal" if refusal else choice.finish_reason or "stop"


def _why_blocked(raw: list[Any]) -> str:
    """Why Gemini's filter stepped in; LiteLLM passes on no more than that it did."""
    try:
        body = json.loads(raw[-1])
        told = [body.get("promptFeedback", {}), *body.get("candidates", [])]
    except (IndexError, TypeError, ValueError, AttributeError):  # another provider's shape
        return ""
    names = ("blockReason", "blockReasonMessage", "finishReason", "finishMessage")
    return ": ".join(part[name] for part in told for name in names if part.get(name))
