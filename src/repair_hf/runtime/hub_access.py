"""What a library of Hugging Face is asked for: a folder of this machine, or an id of a Hub that can be reached.

In:  what a user named: a folder, or an id of the Hub.
Out: the same, such that no library takes a folder for something else. Where the Hub does not answer, which is asked once and before the first
     thing is looked up there, this process goes on offline, with what is cached on this machine.

Without that a mistyped folder on a machine that is offline is taken for an id, and each file of each id is asked for six times within
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


def name_for_datasets(id_or_folder: str | Path) -> str:
    """What `datasets` is to load: a folder by its whole path, for it takes `parquet` or `imagefolder` for its own reader of that name.

    Args:
        id_or_folder: As the user gave it. What is no folder here is left as it is, and the Hub settled for it.
    """
    settle_hub(id_or_folder)
    path = Path(id_or_folder)
    return str(path.absolute() if path.exists() else id_or_folder)


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
