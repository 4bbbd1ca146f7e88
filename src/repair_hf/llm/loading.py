"""Import LiteLLM late, without network and quietly, and ask it what a model is. The import takes seconds."""

from __future__ import annotations

import logging
import os
import re
import warnings
from functools import cache
from types import ModuleType
from typing import Any

from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import use_keys

THINKING_TOKENS = 4096  # mostly some hundred suffice; an answer that is cut off gets more


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
