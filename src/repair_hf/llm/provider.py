"""The provider: sends one request over LiteLLM, once.

In:  a request in the OpenAI chat format: model, messages, temperature, max_tokens, seed.
Out: a `Reply`; or `PassingFailure` where another attempt may succeed (no connection, time-out, 429, 5xx); or `ProviderError` where
     none will (a wrong key, no credit, a request that is not accepted), in the provider's words.

Retries belong to `retries` alone: those of LiteLLM and of the SDKs below it are off, for nested ones would multiply.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from repair_hf.llm.cost import price_per_token
from repair_hf.llm.loading import load_litellm
from repair_hf.options import UserError
from repair_hf.runs import RunStopped


class ProviderError(RunStopped):
    """The provider does not serve; the run stops, and the same command goes on when it serves again."""


class PassingFailure(Exception):
    """A request failed in a way that may pass; `named_wait` are the seconds that the provider asks to wait, if it does."""

    def __init__(self, reason: str, named_wait: float | None = None) -> None:
        super().__init__(reason)
        self.named_wait = named_wait


@dataclass(frozen=True)
class Reply:
    """What came back for one request; see `journal.Entry` for the fields."""

    text: str
    finish: str
    prompt_tokens: int
    completion_tokens: int
    dollars: float | None
    answered_by: str


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
            litellm.get_llm_provider(model)
        except litellm.BadRequestError as error:
            raise UserError(
                f"{model!r} names no provider. Write it as provider/model, such as gemini/gemini-2.5-flash, or as openai/NAME "
                "with the base URL of a server that speaks that protocol."
            ) from error

    async def __call__(self, request: Mapping[str, Any]) -> Reply:
        litellm = load_litellm()
        import openai  # LiteLLM's exceptions are this library's

        try:
            response = await litellm.acompletion(
                **request,
                api_base=self.base_url,
                timeout=self.timeout,
                drop_params=True,  # not every provider takes a seed
                max_retries=0,
                num_retries=0,
            )
        except litellm.ContentPolicyViolationError as error:
            return Reply(_reason(error), "content_filter", 0, 0, 0.0, request["model"])
        except openai.APIError as error:
            if _may_pass(error):
                raise PassingFailure(_reason(error), _named_wait(error)) from error
            raise ProviderError(f"{request['model']} does not accept the request: {_reason(error)}") from error
        return _reply(response, request["model"], litellm)


def _may_pass(error: Any) -> bool:
    """LiteLLM gives a refused or broken connection, and a response that is no JSON, the status 500."""
    if "insufficient_quota" in str(vars(error).get("body")):  # a 429 too, but no wait brings the credit back
        return False
    return error.status_code in (408, 409, 429) or error.status_code >= 500


def _named_wait(error: Any) -> float | None:
    """Seconds by the header Retry-After, which holds a number or a date."""
    headers = vars(error).get("litellm_response_headers") or {}  # absent where no response came
    value = headers.get("retry-after", "")
    if value.replace(".", "", 1).isdecimal():
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except ValueError:
        return None


def _reason(error: Any) -> str:
    """The first line of what the provider says; LiteLLM may add a traceback below."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if len(line) <= 300 else line[:297] + "..."


def _reply(response: Any, model: str, litellm: Any) -> Reply:
    usage = response.get("usage") or litellm.Usage()
    # By the model that was asked for; LiteLLM's own figure goes by the name that stands in the response.
    is_priced = price_per_token(model) is not None
    dollars = sum(litellm.cost_per_token(model=model, usage_object=usage)) if is_priced else None
    text, finish = "", "empty"
    if response.choices:
        choice = response.choices[0]
        refusal = (choice.message.get("provider_specific_fields") or {}).get("refusal")
        text, finish = choice.message.content or refusal or "", "refusal" if refusal else choice.finish_reason
    return Reply(
        text=text.encode("utf-8", "replace").decode(),  # half a surrogate pair comes in JSON, but cannot be sent again
        finish=finish or "stop",
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        dollars=dollars,
        answered_by=response.model or model,
    )
