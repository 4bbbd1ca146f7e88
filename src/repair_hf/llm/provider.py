"""LiteLLM, and what its exceptions mean.

LiteLLM is imported late, without network and quietly: the import takes seconds. Its retries are off, because those of
`paid_model` know the ceilings.
"""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Literal

from repair_hf.llm.ledger import Reply
from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import printable, use_keys, without_secrets
from repair_hf.runtime.run_folder import RunStopped

LATER = "Every answer so far is kept; run the same command again later."
LONGEST_REASON = 500  # characters
THINKING_TOKENS = 4096  # mostly some hundred suffice; an answer that is cut off gets more

# Answers a request in the OpenAI chat format in place of LiteLLM: the toy world's oracle, or a function of Python.
Provider = Callable[[Mapping[str, Any]], Awaitable[Reply]]

# Their servers enforce a JSON schema for any model, though LiteLLM's table, which goes by model, does not say so.
_TAKE_ANY_SCHEMA = ("hosted_vllm", "ollama", "ollama_chat")
_KEYS_BEGIN = {"gemini": ("GOOGLE_",), "huggingface": ("HF_",), "bedrock": ("AWS_",)}
# An empty account, in the words of OpenAI, Anthropic and DeepSeek: LiteLLM has no class for it.
_NO_CREDIT = re.compile(r"insufficient_quota|billing_hard_limit|credit balance is too low|insufficient balance", re.I)
_MESSAGE = re.compile(r'"message": *"((?:[^"\\]|\\.)+)"')  # in a body that LiteLLM passes on, as Gemini's
_WRAPPING = re.compile(r"^((litellm\.)?\w*(Error|Exception|Timeout)( \w+Error)?( - |: ))+")


class ProviderError(RunStopped):
    """The provider does not answer (wrong key, no credit, no such model): the run stops and can be resumed later."""

    may_be_billed = False


class RejectedRequest(Exception):
    """The provider does not accept this request: only its row is dropped."""

    may_be_billed = False


class PassingError(Exception):
    """A request failed, but another attempt may succeed: a bad connection, a time-out, 429 or 5xx.

    Args:
        named_wait: Seconds that the provider asks to wait; None if it names none.
        is_rate_limit: Whether the rate limit was exceeded.
        may_be_billed: Whether the provider may have answered, and only the answer was lost.
    """

    def __init__(
        self,
        reason: str,
        *,
        named_wait: float | None = None,
        is_rate_limit: bool = False,
        may_be_billed: bool = False,
    ) -> None:
        super().__init__(reason)
        self.named_wait = named_wait
        self.is_rate_limit, self.may_be_billed = is_rate_limit, may_be_billed


class UnreadableReply(PassingError):
    """A reply came that cannot be read. It may be billed, so it is asked for once more only."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, may_be_billed=True)


class BlockedContent(Exception):
    """The provider's filter blocked the question or its answer."""


def as_error(error: Exception, model: str) -> Exception:
    """Return what an exception of LiteLLM's means, as an error of this file."""
    import httpx

    litellm, reason = load_litellm(), reason_of(error)
    causes = list(_causes(error))
    status = getattr(error, "status_code", None)
    has_response = any(isinstance(cause, httpx.HTTPStatusError) for cause in causes)
    has_no_reply = any(isinstance(cause, httpx.TransportError) for cause in causes)
    if isinstance(error, litellm.ContentPolicyViolationError):
        return BlockedContent(reason)
    is_guessed = status is None or status < 400 or status in (422, 500)  # by LiteLLM, of a body that it cannot read
    if is_guessed and not (has_response or has_no_reply):
        return UnreadableReply(f"{model} sent a reply that cannot be read: {reason}")
    is_spent = any(getattr(cause, "code", None) == "insufficient_quota" for cause in causes)
    if is_spent or status == 402 or (status in (400, 403, 429) and _NO_CREDIT.search(reason)):
        return ProviderError(f"{model} has no credit left: {reason}. {LATER}")
    if status == 401:
        return ProviderError(f"{model} does not accept the API key: {reason}. {LATER}")
    if status == 429:
        return PassingError(reason, named_wait=_named_wait(error), is_rate_limit=True)
    if status in (None, 408, 409) or status >= 500:
        was_sent = not any(isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout) for cause in causes)
        return PassingError(reason, named_wait=_named_wait(error), may_be_billed=was_sent and not has_response)
    if status in (400, 413, 422):
        return RejectedRequest(f"{model} does not accept the request: {reason}")
    return ProviderError(f"{model} does not accept the request: {reason}. {LATER}")


def reason_of(error: BaseException) -> str:
    """Return the message in LiteLLM's wrapping, on one line, without keys, fit for a terminal."""
    text = _WRAPPING.sub("", str(error).strip())
    if text in ("", "Connection error."):
        below = [str(cause) for cause in _causes(error) if isinstance(cause, OSError)]
        text = f"{text or type(error).__name__} {below[-1] if below else ''}".strip()
    if message := _MESSAGE.search(text):
        text = message[1]
    first = next((line for line in text.splitlines() if line.strip()), text)  # a traceback may follow
    line = printable(" ".join(without_secrets(first).split()))
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and its chain of causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _named_wait(error: Exception) -> float | None:
    """Return the seconds of the header Retry-After. LiteLLM keeps it in an attribute that it names nowhere."""
    headers = getattr(error, "litellm_response_headers", None) or {}
    value = str(headers.get("retry-after", ""))
    return float(value) if value.replace(".", "", 1).isdecimal() else None


def load_litellm() -> ModuleType:
    """Import LiteLLM with the price list that it ships, and without its output to the terminal."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    _ignore_warnings()
    import litellm

    litellm.suppress_debug_info = True
    logger = logging.getLogger("LiteLLM")
    if logger.level == logging.NOTSET:  # the user did not set LITELLM_LOG
        logger.setLevel(logging.ERROR)  # its warnings about a model come with every request
    return litellm


@cache
def _ignore_warnings() -> None:
    """Ignore what pydantic says of some of LiteLLM's classes, which are built when they are first used."""
    warnings.filterwarnings("ignore", r"Items? '.*' on TypedDict class '\w+' (is|are) using the `Read", UserWarning)


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
        UserError: If none is set.
    """
    litellm = load_litellm()
    missing = litellm.validate_environment(model, api_base=base_url)["missing_keys"]
    named = sorted(name for name in missing if name.endswith("_API_KEY"))
    keys = key_names(model)
    use_keys(keys)
    for name in keys:
        if os.environ[name] != os.environ[name].strip():
            raise UserError(f"{name} begins or ends with a space or a line break. Set it without.")
        if not os.environ[name].isascii():  # no header can carry it
            raise UserError(f"{name} holds a character that no key has, such as a curly quotation mark. Set it anew.")
    if named == sorted(missing) and named and not keys and litellm.api_key is None:
        raise UserError(f"No API key for {model}: set {' or '.join(named)} (any value for your own server).")


def key_names(model: str) -> list[str]:
    """Return the environment variables that hold a key of the model's provider."""
    _, provider = find_provider(model)
    named = load_litellm().validate_environment(model)["missing_keys"]
    # LiteLLM reads more variables than it names, such as TOGETHER_API_KEY.
    begins = (provider[:5].upper(), *(name[:5] for name in named), *_KEYS_BEGIN.get(provider, ()))
    return sorted(name for name in os.environ if name.startswith(begins) and re.search("KEY|TOKEN", name))


def thinking_room(model: str, reasoning_effort: str | None) -> int:
    """Return how many tokens to add to `max_tokens`, because a reasoning model counts its thoughts towards it."""
    litellm = load_litellm()
    if not litellm.supports_reasoning(model):
        return 0
    if reasoning_effort != "none":
        return THINKING_TOKENS
    params = mapped(model, "none")
    # Some models cannot turn reasoning off, and LiteLLM drops the parameter for some of these.
    is_off = params.get("reasoning_effort") == "none" or params.get("thinkingConfig", {}).get("thinkingBudget") == 0
    return 0 if is_off else THINKING_TOKENS


@cache
def mapped(model: str, reasoning_effort: str) -> dict[str, Any]:
    """Return what LiteLLM makes of an effort for this model."""
    name, provider = find_provider(model)
    return load_litellm().utils.get_optional_params(  # seen with litellm 1.106
        model=name, custom_llm_provider=provider, reasoning_effort=reasoning_effort, drop_params=True
    )


def answer_form(model: str) -> Literal["schema", "object", "free"]:
    """Return the format of answers that the provider surely enforces; `free` if LiteLLM does not know the model."""
    litellm, (name, provider) = load_litellm(), find_provider(model)
    if provider in _TAKE_ANY_SCHEMA or litellm.supports_response_schema(model=name, custom_llm_provider=provider):
        return "schema"
    takes = litellm.get_supported_openai_params(model=name, custom_llm_provider=provider) or ()
    is_known = model in litellm.model_cost or name in litellm.model_cost
    return "object" if is_known and "response_format" in takes else "free"
