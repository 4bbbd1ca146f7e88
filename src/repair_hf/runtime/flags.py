"""Add one flag per dataclass field to an argparse parser, with its line in `--help`.

The parser hands on words: the dataclass converts and checks them. transformers' `HfArgumentParser` takes a second to
import.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import Field, fields
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from repair_hf.runtime.options import as_flag, declaration_of, default_of, is_needed
from repair_hf.runtime.texts import parse_json

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
    hints, hidden = get_type_hints(kind), getattr(kind, "_without_flag", ())
    actions = []
    for field in fields(kind):
        word_type = _word_type(hints[field.name])
        keywords = _keywords(word_type)
        if not field.init or field.name in hidden or keywords is None:
            continue
        owner = next(base for base in kind.__mro__ if field.name in vars(base).get("__annotations__", {}))
        is_shown = declaration_of(field).main or not is_brief
        keywords |= {"default": argparse.SUPPRESS, "help": _help(field) if is_shown else argparse.SUPPRESS}
        actions.append(groups[_heading(owner)].add_argument(as_flag(field.name), dest=field.name, **keywords))
    return actions


def expand_home(word: str) -> str:
    """Expand `~` at the start of a path: no shell has seen the words of a recipe, or those behind a `=`."""
    return os.path.expanduser(word) if word == "~" or word.startswith("~/") else word


def _keywords(word_type: Any) -> dict[str, Any] | None:
    """Return how argparse reads a value, and what the help calls it; None if no word can express it."""
    if word_type is bool:
        return {"action": argparse.BooleanOptionalAction}
    is_list = get_origin(word_type) is list
    name = _value_name(get_args(word_type)[0] if is_list else word_type)
    if name is None:
        return None
    convert = parse_json if name == "JSON" else expand_home
    return {"metavar": name, "type": convert, "nargs": "+" if is_list else None}


def _heading(owner: type) -> str:
    name = owner.__name__
    derived = name.removesuffix("Options").lower() if name.endswith("Options") else name
    return getattr(owner, "_argument_group_name", derived)


def _word_type(hint: Any) -> Any:
    """Return the one type that a word on the command line stands for."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum)]
    return enums[0] if enums else str if str in kinds else kinds[0]


def _value_name(kind: Any) -> str | None:
    """Return what the help calls a value; None if no word can express it."""
    kind = dict if get_origin(kind) is dict else kind
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = tuple(member.value for member in kind)
    if choices:
        return f"{{{','.join(map(str, choices))}}}" if len(choices) <= MOST_CHOICES else "TEXT"
    return NAMES.get(kind, "TEXT") if kind in (str, *NAMES) else None


def _help(field: Field) -> str:
    text, default = declaration_of(field), default_of(field)
    if is_needed(field):
        return f"{text} (required)"
    if default is None or default is False or default == []:  # the text explains these
        return text
    return f"{text} (default: {str(default).replace('%', '%%')})"
