"""The base retriever that comes with the package, and the id under which it is loaded.

In:  a model id.
Out: where its files lie: those of `world/base` in this package, any other id as it is.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from repair_hf.options import UserError

BASE_ID = "world/base"
BASE = Path(str(files("repair_hf.toyworld") / "base_clip"))


def locate(model: str | Path) -> str:
    """The folder of `world/base`; any other id or folder unchanged.

    Raises:
        UserError: If it is said to be the toy world's, and is not.
    """
    model = str(model)
    if model.startswith("world/") and model != BASE_ID and not Path(model).exists():
        raise UserError(f"`{model}` is no folder, and the toy world has one retriever: {BASE_ID}.")
    return str(BASE) if model == BASE_ID else model
