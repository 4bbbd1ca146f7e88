"""The base retriever that comes with the package, and the id under which commands know it.

In:  a model id.
Out: where its files lie: those of `world/base` in this package, any other id as it is.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

BASE_ID = "world/base"
BASE = Path(str(files("repair_hf.toyworld") / "base_clip"))


def locate(model: str) -> str:
    """The folder of `world/base`; any other id or folder unchanged."""
    return str(BASE) if model == BASE_ID else model
