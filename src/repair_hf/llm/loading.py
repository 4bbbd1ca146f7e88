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
    return litellm
