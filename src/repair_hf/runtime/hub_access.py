"""Whether a model or dataset is a local folder or a Hub id, and whether the Hub is reachable.

The libraries of Hugging Face retry each file of each id for half a minute if the Hub does not answer. Therefore the
Hub is tried once; if it does not answer, this process works offline with what is cached.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import httpx
from huggingface_hub import constants, get_session
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # seen with huggingface_hub 1.33

logger = logging.getLogger(__name__)

PATIENCE = 5.0  # seconds


def settle_hub(id_or_folder: str | Path) -> None:
    """Check that the Hub is reachable, unless the name is a local path or cannot be an id."""
    if not constants.is_offline_mode() and _may_be_id(id_or_folder):
        try_once(constants.ENDPOINT)


def is_offline_id(id_or_folder: str | Path) -> bool:
    """Return whether a name can only be a Hub id, and the Hub is not to be asked."""
    return constants.is_offline_mode() and _may_be_id(id_or_folder)


def _may_be_id(id_or_folder: str | Path) -> bool:
    if Path(id_or_folder).exists():
        return False
    try:
        validate_repo_id(str(id_or_folder))
    except HFValidationError:
        return False
    return True


def name_for_datasets(id_or_folder: str | Path) -> str:
    """Return what `datasets` should load: a Hub id, or the absolute path of a folder.

    `datasets` takes a relative folder named `parquet` or `imagefolder` for its own reader of that name.
    """
    settle_hub(id_or_folder)
    path = Path(id_or_folder)
    return str(path.absolute() if path.exists() else id_or_folder)


@cache
def try_once(endpoint: str) -> None:
    import datasets

    try:
        get_session().head(endpoint, timeout=PATIENCE)  # any answer will do
    except httpx.TransportError as error:
        logger.warning(
            "The Hub at %s cannot be reached (%s); only what is cached on this machine is used.", endpoint, error
        )
        # Both libraries read their variables once, at import. Seen with huggingface_hub 1.33 and datasets 5.2.
        constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
