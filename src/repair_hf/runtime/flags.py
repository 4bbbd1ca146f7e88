"""Arguments of a command line, out of the fields of dataclasses.

In:  a parser of argparse, a dataclass.
Out: one flag for each field, grouped by the class that declares it, and a help text that shows each with its type and default.

The rules are those of transformers' `HfArgumentParser`, whose import would make every `--help` wait for a second.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from dataclasses import MISSING, Field, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

MAX_WIDTH = 120  # columns of a help text; lines that are longer than that are hard to read
BOUNDS = "bounds"  # key of a field's metadata that argparse does not know
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def is_needed(field: Field) -> bool:
    """Whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def add_arguments(parser: argparse.ArgumentParser, type: type) -> None:
    """Give a parser the flags of a dataclass.

    The help groups fields by the class that declares them, a class before its bases; its `_argument_group_name` is the heading.

    Args:
        parser: Gets the flags.
        type: The dataclass. A field whose values no word can name, such as an object, gets no flag.
    """
    hints = get_type_hints(type)
    headings = dict.fromkeys(_heading(owner) for owner in type.__mro__)
    groups = {heading: parser.add_argument_group(heading) for heading in headings}
    for field in fields(type):
        if field.init and (told := _told(field, hints[field.name])) is not None:
            owner = next(base for base in type.__mro__ if field.name in vars(base).get("__annotations__", {}))
            group = groups[_heading(owner)]
            group.add_argument(*_spellings("", field.name), **told)
            if told["default"] is True:
                group.add_argument(*_spellings("no_", field.name), action="store_false", dest=field.name)


def _heading(owner: type) -> str:
    return getattr(owner, "_argument_group_name", owner.__name__)


def _told(field: Field, hint: Any) -> dict[str, Any] | None:
    """What argparse must know of a field, or None if it gets no flag."""
    kind = _kind(hint)
    metadata = {key: value for key, value in field.metadata.items() if key != BOUNDS}
    told = {"default": None if is_needed(field) else _default(field), "required": is_needed(field)} | metadata
    if kind is bool:
        return told | {"type": _truth, "nargs": "?", "const": True}
    if get_origin(kind) is Literal:
        return told | {"choices": get_args(kind)}
    if get_origin(kind) is list:
        return told | {"type": _reader(get_args(kind)[0]), "nargs": "+"}
    if (get_origin(kind) or kind) is dict:
        return told | {"type": json.loads}
    if issubclass(kind, Enum):
        return told | {"choices": [each.value for each in kind]}
    return told | {"type": _reader(kind)} if kind in (str, int, float) else None


def _kind(hint: Any) -> Any:
    """The one type that a word on the command line is read as."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum)]
    return enums[0] if enums else str if str in kinds else kinds[0]


def _default(field: Field) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _reader(kind: Any) -> Any:
    return _text if kind is str else kind


def _text(word: str) -> str:
    """A word as it stands, but a path below one's home in full: no shell sees what a recipe says."""
    return os.path.expanduser(word) if word == "~" or word.startswith("~/") else word


def _truth(word: str) -> bool:
    if word.lower() not in _TRUTHS:
        raise argparse.ArgumentTypeError(f"{word!r} is neither true nor false")
    return _TRUTHS[word.lower()]


def _spellings(prefix: str, name: str) -> list[str]:
    return list(dict.fromkeys((f"--{prefix}{name}", f"--{prefix}{name}".replace("_", "-"))))


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """One spelling and a type for each flag, and its default; the epilog as it was written."""

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size(fallback=(MAX_WIDTH, 0)).columns  # in a pipe the fallback
        super().__init__(prog, max_help_position=min(34, columns // 3), width=min(columns, MAX_WIDTH) - 1)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if action.dest == "help":
            return "--help"
        flag = f"--{action.dest.replace('_', '-')}"
        if action.const is True:  # a switch; one that is on by default can be turned off
            return f"--[no-]{flag.removeprefix('--')}" if action.default is True else flag
        value = _value_name(action)
        return f"{flag} {value} ..." if action.nargs == "+" else f"{flag} {value}"

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.required:
            return f"{action.help} (required)"
        is_silent = action.default is None or action.default is False  # the help says what happens without the flag
        return action.help if is_silent else super()._get_help_string(action)

    def add_argument(self, action: argparse.Action) -> None:
        turns_off = isinstance(action, argparse._StoreFalseAction)  # shown with the switch that it turns off
        if not turns_off:
            super().add_argument(action)


def _value_name(action: argparse.Action) -> str:
    if action.choices is not None and len(action.choices) <= 8:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return {int: "INT", float: "FLOAT", json.loads: "JSON"}.get(action.type, "TEXT")
