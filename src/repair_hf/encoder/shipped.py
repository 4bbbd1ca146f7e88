"""The toy world's retrievers that are shipped with the package, and their model ids."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from repair_hf.runtime.options import UserError
from repair_hf.runtime.stage import refuse_unfinished

RETRIEVERS = {
    f"world/{name}": Path(str(files("repair_hf.encoder") / "retrievers" / name)) for name in ("base", "narrow")
}
BASE, NARROW = RETRIEVERS["world/base"], "world/narrow"


def locate(model: str | Path) -> str:
    """Return the folder of a shipped retriever, and any other id or folder unchanged.

    Every model that is named passes here.

    Raises:
        UserError: If there is no such retriever, or the folder is of a training or an export that is unfinished.
    """
    model = str(model)
    refuse_unfinished(model)
    if model.startswith("world/") and model not in RETRIEVERS and not Path(model).exists():
        raise UserError(f"`{model}` is neither a folder nor a retriever of the toy world: {', '.join(RETRIEVERS)}.")
    return str(RETRIEVERS.get(model, model))
