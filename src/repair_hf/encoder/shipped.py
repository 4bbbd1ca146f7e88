"""The toy world's retriever that is shipped with the package, `world/base`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from repair_hf.runtime.options import UserError
from repair_hf.runtime.stage import refuse_unfinished

NAME = "world/base"
BASE = Path(str(files("repair_hf.encoder") / "retrievers" / "base"))


def locate(model: str | Path) -> str:
    """Return the folder of the shipped retriever, and any other id or folder unchanged.

    Every model that is named passes here.

    Raises:
        UserError: If there is no such retriever, or the folder is of a training or an export that is unfinished.
    """
    model = str(model)
    refuse_unfinished(model)
    if model.startswith("world/") and model != NAME and not Path(model).exists():
        raise UserError(f"`{model}` is neither a folder nor the retriever of the toy world: {NAME}.")
    return str(BASE) if model == NAME else model
