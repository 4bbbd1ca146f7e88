"""Whether the Hub can be reached: asked once, before the first thing is looked up there.

In:  what a user named: a folder, or an id of the Hub.
Out: nothing; but where the Hub does not answer, this process goes on offline, with what is cached on this machine.

Without it a mistyped folder on a machine that is offline is taken for an id, and each file of each id is asked for six times within
half a minute.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import httpx
from huggingface_hub import constants
from huggingface_hub.utils import HFValidationError, get_session, validate_repo_id

logger = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds


def settle_hub(id_or_folder: str | Path) -> None:
    """Call it before an id that may be one of the Hub is handed to a library of Hugging Face.

    Args:
        id_or_folder: What lies here, or cannot be an id, asks nothing of the Hub.
    """
    if constants.is_offline_mode() or Path(id_or_folder).exists():
        return
    try:
        validate_repo_id(str(id_or_folder))
    except HFValidationError:
        return
    _ask_once(constants.ENDPOINT)


@cache
def _ask_once(endpoint: str) -> None:
    import datasets

    try:
        get_session().head(endpoint, timeout=PATIENCE)  # whatever it answers, it is there
    except httpx.TransportError as error:
        logger.warning(
            "The Hub at %s cannot be reached (%s); only what is cached on this machine is used.", endpoint, error
        )
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
