"""LiteLLM, imported late and made quiet.

In:  nothing.
Out: the module `litellm`. Importing it takes seconds, and by default fetches a price list from the network: here it is told to use
     the one that it ships with.
"""

from __future__ import annotations

import logging
import os
from types import ModuleType


def load_litellm() -> ModuleType:
    """Import LiteLLM (once) without network and without its advice to the terminal."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True
    logger = logging.getLogger("LiteLLM")
    if logger.level == logging.NOTSET:  # unless the user set LITELLM_LOG
        logger.setLevel(logging.WARNING)  # at INFO it writes two lines per request
        logger.addFilter(_Once())
    return litellm


class _Once(logging.Filter):
    """Lets each text through once: of what it thinks of a model LiteLLM warns with every request."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_new = text not in self._seen
        self._seen.add(text)
        return is_new
