"""Add one flag per dataclass field to an argparse parser, and format its `--help`.

The rules are those of transformers' `HfArgumentParser`, which takes a second to import.
"""

from __future__ import annotations

import argparse
import os
import shutil
from dataclasses import Field, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from repair_hf.runtime.options import declaration_of, default_of, is_needed
from repair_hf.runtime.texts import parse_json

MAX_WIDTH = 120  # columns of a help text
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def add_arguments(parser: argparse.ArgumentParser, type: type, *, is_brief: bool = False) -> list[argparse.Action]:
    """Give a parser the flags of a dataclass, and return them as argparse's actions.

    The help groups fields by the class that declares them, a class before its bases. `MineOptions` has the heading
    `mine`; a class may set another as `_argument_group_name`. A field that no word can express gets no flag, and none
    that a class names in `_without_flag`. With `is_brief` the help shows the options declared as `main` alone.
    """
    headings = dict.fromkeys(_heading(owner) for owner in type.__mro__)
    groups = {heading: parser.add_argument_group(heading) for heading in headings}
    hints, actions, hidden = get_type_hints(type), [], getattr(type, "_without_flag", ())
    for field in (each for each in fields(type) if each.name not in hidden):
        owner = next(base for base in type.__mro__ if field.name in vars(base).get("__annotations__", {}))
        added = _add_flags(groups[_heading(owner)], field, hints[field.name])
        actions += added
        for action in added if is_brief and not declaration_of(field).main else ():
            action.help = argparse.SUPPRESS
    return actions


def _add_flags(group: Any, field: Field, hint: Any) -> list[argparse.Action]:
    """Add a field's flag, and for a switch that is on by default the flag that turns it off; return the actions."""
    if not field.init or (keywords := _keywords(field, hint)) is None:
        return []
    actions = [group.add_argument(*_spellings("", field.name), **keywords)]
    if keywords["default"] is True:
        off: dict[str, Any] = {"action": "store_const", "const": False, "default": True, "dest": field.name}
        actions.append(group.add_argument(*_spellings("no_", field.name), **off))
    return actions


def _heading(owner: type) -> str:
    name = owner.__name__
    derived = name.removesuffix("Options").lower() if name.endswith("Options") else name
    return getattr(owner, "_argument_group_name", derived)


def _keywords(field: Field, hint: Any) -> dict[str, Any] | None:
    """Return what `add_argument` takes for a field, or None if it gets no flag."""
    kind = _kind(hint)
    keywords = {"default": default_of(field), "required": is_needed(field)} | dict(field.metadata)
    if kind is bool:
        return keywords | {"type": _truth, "nargs": "?", "const": True}
    if get_origin(kind) is Literal:
        return keywords | {"choices": get_args(kind)}
    if get_origin(kind) is list:
        return keywords | {"type": _reader(get_args(kind)[0]), "nargs": "+"}
    if (get_origin(kind) or kind) is dict:
        return keywords | {"type": parse_json}
    if issubclass(kind, Enum):
        return keywords | {"choices": [each.value for each in kind]}
    return keywords | {"type": _reader(kind)} if kind in (str, int, float) else None


def _kind(hint: Any) -> Any:
    """Return the one type that a word on the command line is converted to."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum)]
    return enums[0] if enums else str if str in kinds else kinds[0]


def _reader(kind: Any) -> Any:
    return _text if kind is str else kind


def _text(word: str) -> str:
    """Expand `~` at the start of a path: no shell has seen the words of a recipe."""
    return os.path.expanduser(word) if word == "~" or word.startswith("~/") else word


def _truth(word: str) -> bool:
    if word.lower() not in _TRUTHS:
        raise argparse.ArgumentTypeError(f"{word!r} is neither true nor false")
    return _TRUTHS[word.lower()]


def _spellings(prefix: str, name: str) -> list[str]:
    return list(dict.fromkeys((f"--{prefix}{name}", f"--{prefix}{name}".replace("_", "-"))))


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Show one spelling, the type and the default of each flag, and the epilog unchanged.

    argparse documents formatter classes by name only; overriding these methods is the only way to change their output.
    """

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size(fallback=(MAX_WIDTH, 0)).columns
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
        is_silent = action.default is None or action.default is False or action.default == []  # its help explains it
        return action.help if is_silent else super()._get_help_string(action)

    def add_argument(self, action: argparse.Action) -> None:
        if action.const is not False:  # `--no-x` is shown together with `--x`
            super().add_argument(action)


def _value_name(action: argparse.Action) -> str:
    choices = list(action.choices or ())
    if choices and len(choices) <= 8:
        return "{" + ",".join(map(str, choices)) + "}"
    return {int: "INT", float: "FLOAT", parse_json: "JSON"}.get(action.type, "TEXT")
