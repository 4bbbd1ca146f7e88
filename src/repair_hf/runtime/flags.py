"""Add one flag per dataclass field to an argparse parser, and format its `--help`.

The parser hands on words: the dataclass converts and checks them. transformers' `HfArgumentParser` takes a second to
import.
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
MOST_CHOICES = 8  # that a help lists
NAMES = {int: "INT", float: "FLOAT", dict: "JSON"}  # of values


def add_arguments(parser: argparse.ArgumentParser, kind: type, *, is_brief: bool = False) -> list[argparse.Action]:
    """Give a parser the flags of a dataclass, and return them as argparse's actions.

    The help groups fields by the class that declares them, a class before its bases. `MineOptions` has the heading
    `mine`; a class may set another as `_argument_group_name`. A field that no word can express gets no flag, and none
    that a class names in `_without_flag`. With `is_brief` the help shows the options declared as `main` alone.
    """
    headings = dict.fromkeys(_heading(owner) for owner in kind.__mro__)
    groups = {heading: parser.add_argument_group(heading) for heading in headings}
    hints, actions, hidden = get_type_hints(kind), [], getattr(kind, "_without_flag", ())
    for field in fields(kind):
        if not field.init or field.name in hidden:
            continue
        owner = next(base for base in kind.__mro__ if field.name in vars(base).get("__annotations__", {}))
        added = _add_flags(groups[_heading(owner)], field, _kind(hints[field.name]))
        actions += added
        for action in added if is_brief and not declaration_of(field).main else ():
            action.help = argparse.SUPPRESS
    return actions


def expand_home(word: str) -> str:
    """Expand `~` at the start of a path: no shell has seen the words of a recipe, or those behind a `=`."""
    return os.path.expanduser(word) if word == "~" or word.startswith("~/") else word


def _add_flags(group: Any, field: Field, kind: Any) -> list[argparse.Action]:
    """Add a field's flag, and for a switch that is on by default the flag that turns it off; return the actions."""
    flag, value = f"--{field.name.replace('_', '-')}", _value_name(kind)
    keywords: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": field.name, "help": _help(field)}
    if value is None:
        return []
    if kind is not bool:
        several = get_origin(kind) is list
        keywords["metavar"] = f"{flag} {value} ..." if several else f"{flag} {value}"
        keywords |= {"type": parse_json if value == "JSON" else expand_home, "nargs": "+" if several else None}
        return [group.add_argument(*_spellings("", field.name), **keywords)]
    is_on = default_of(field) is True
    keywords |= {"nargs": "?", "const": True, "metavar": flag.replace("--", "--[no-]") if is_on else flag}
    actions = [group.add_argument(*_spellings("", field.name), **keywords)]
    if is_on:
        off = {"action": "store_false", "help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
        actions.append(group.add_argument(*_spellings("no_", field.name), dest=field.name, **off))
    return actions


def _heading(owner: type) -> str:
    name = owner.__name__
    derived = name.removesuffix("Options").lower() if name.endswith("Options") else name
    return getattr(owner, "_argument_group_name", derived)


def _kind(hint: Any) -> Any:
    """Return the one type that a word on the command line stands for."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum)]
    return enums[0] if enums else str if str in kinds else kinds[0]


def _value_name(kind: Any) -> str | None:
    """Return what the help calls a value; None if no word can express it."""
    if get_origin(kind) is list:
        return _value_name(get_args(kind)[0])
    kind = dict if get_origin(kind) is dict else kind
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = tuple(member.value for member in kind)
    if choices:
        return f"{{{','.join(map(str, choices))}}}" if len(choices) <= MOST_CHOICES else "TEXT"
    return NAMES.get(kind, "TEXT") if kind in (str, bool, *NAMES) else None


def _help(field: Field) -> str:
    text, default = declaration_of(field), default_of(field)
    if is_needed(field):
        return f"{text} (required)"
    if default is None or default is False or default == []:  # the text explains these
        return text
    return f"{text} (default: {str(default).replace('%', '%%')})"


def _spellings(prefix: str, name: str) -> list[str]:
    return list(dict.fromkeys((f"--{prefix}{name}", f"--{prefix}{name}".replace("_", "-"))))


class Help(argparse.RawDescriptionHelpFormatter):
    """Show one spelling of each flag, and the epilog unchanged.

    argparse documents formatter classes by name only; overriding a method is the only way to change their output.
    """

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size(fallback=(MAX_WIDTH, 0)).columns
        super().__init__(prog, max_help_position=min(34, columns // 3), width=min(columns, MAX_WIDTH) - 1)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return str(action.metavar or "--help")
