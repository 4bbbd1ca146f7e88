"""Import LiteLLM late, without network and quietly. The import takes seconds."""

from __future__ import annotations

import logging
import os
from types import ModuleType


def load_litellm() -> ModuleType:
    """Import LiteLLM with the price list that it ships, and without its output to the terminal."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True
    logger = logging.getLogger("LiteLLM")
    if logger.level == logging.NOTSET:  # the user did not set LITELLM_LOG
        logger.setLevel(logging.WARNING)  # at INFO it writes two lines per request
        logger.addFilter(_Once())
    return litellm


class _Once(logging.Filter):
    """Passes each text once: LiteLLM repeats its warnings about a model with every request."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_new = text not in self._seen
        self._seen.add(text)
        return is_new
