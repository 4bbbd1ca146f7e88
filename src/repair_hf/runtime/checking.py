"""Convert the values of options to their types, and check them, by pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

LIMITS = {"least": "ge", "above": "gt", "most": "le"}  # of `opt`, by pydantic's names


def adapter(hint: Any, bounds: Mapping[str, float]) -> TypeAdapter:
    """Return what converts and checks a value; its numbers, also those of a list, must lie within `bounds`."""
    config = ConfigDict(coerce_numbers_to_str=True, allow_inf_nan=False)
    return TypeAdapter(_within(hint, bounds) if bounds else hint, config=config)


def check(adapter: TypeAdapter, value: Any) -> Any:
    """Return a value, converted; a path counts as a text.

    Raises:
        ValueError: If it is not valid; it says what the value must be, and what it is.
    """
    try:
        return adapter.validate_python(_without_paths(value))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem, value = first["msg"].replace("Input should be", "must be"), first["input"]
        advice = " In a recipe, write words such as no and off in quotes." if isinstance(value, bool) else ""
        raise ValueError(f"{problem}, got {value!r}.{advice}") from error


def _within(hint: Any, bounds: Mapping[str, float]) -> Any:
    if hint in (int, float):
        limits: Any = {LIMITS[name]: bound for name, bound in bounds.items()}
        return Annotated[hint, Field(**limits)]
    parts: Any = tuple(_within(part, bounds) for part in get_args(hint))
    if get_origin(hint) is list:
        return list[parts]
    return Union[parts] if get_origin(hint) in (Union, UnionType) else hint  # noqa: UP007


def _without_paths(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_without_paths(item) for item in value]
    return str(value) if isinstance(value, Path) else value
