"""Find a recipe: as a path, or by its name among those that the package ships."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def find_recipe(name: str | Path) -> Path:
    """Return a file or folder that exists as it is, else the shipped one of that name, else the path unchanged.

    Example:
        >>> find_recipe("toy/mine.yaml").name  # `recipes/toy/mine.yaml` finds the same
        'mine.yaml'
    """
    path = Path(name)
    if path.exists() or path.is_absolute():
        return path
    parts = path.parts[1:] if path.parts[:1] == ("recipes",) else path.parts
    shipped = Path(str(files("repair_hf.recipes"))).joinpath(*parts)
    return shipped if parts and shipped.exists() else path
