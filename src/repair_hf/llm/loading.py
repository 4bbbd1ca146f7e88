"""Import LiteLLM late, without network and quietly. The import takes seconds."""

from __future__ import annotations

import logging
import os
from types import ModuleType

_seen: set[str] = set()  # warnings of LiteLLM


def load_litellm() -> ModuleType:
    """Import LiteLLM with the price list that it ships, and without its output to the terminal."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True
    logger = logging.getLogger("LiteLLM")
    if logger.level == logging.NOTSET:  # the user did not set LITELLM_LOG
        logger.setLevel(logging.WARNING)  # at INFO it writes two lines per request
        logger.addFilter(_is_new)
    return litellm


def _is_new(record: logging.LogRecord) -> bool:
    """Pass each text once: LiteLLM repeats its warnings about a model with every request."""
    text = record.getMessage()
    is_new = text not in _seen
    _seen.add(text)
    return is_new
