"""Parse a command line and a recipe into dataclasses of options.

Flags beat `--config FILE.yaml`, which beats the defaults. An unknown key or flag is an error.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from repair_hf.runtime.files import REPAIR, read_yaml, shipped
from repair_hf.runtime.flags import add_arguments, expand_home
from repair_hf.runtime.options import UserError, as_flag, did_you_mean, fields_of, is_needed

MOST_SHOWN = 21  # options; the short help of a command with more of them shows the main ones
MAX_WIDTH = 120  # columns of a help text
TRUTHS = {"true": True, "false": False, "yes": True, "no": False}  # words that may stand behind a switch


def parse(
    types: Sequence[type],
    argv: Sequence[str],
    prog: str,
    *,
    description: str | None = None,
    epilog: str | None = None,
    is_brief: bool = False,
) -> tuple:
    """Fill each dataclass of `types` from the command line `argv`.

    `argv` holds the words after `prog`, such as `repair-hf mine`. Words without a flag are the value of the first
    option without a default: `show runs/records` is `show --records runs/records`. With `is_brief` there are the main
    options alone: for a short help.

    Raises:
        UserError: If a key, flag or value is unknown or invalid, or a required one is missing.
    """
    values = _Parser(types, is_brief, prog=prog, description=description, epilog=epilog).read(list(argv))
    try:
        return tuple(kind(**{name: values[name] for name in fields_of(kind) if name in values}) for kind in types)
    except UserError:
        raise
    except ValueError as error:  # a dataclass's own check in __post_init__
        raise UserError(str(error)) from error


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
    recipe = shipped("recipes").joinpath(*parts)
    return recipe if parts and recipe.exists() else path


class _Parser(argparse.ArgumentParser):
    """The flags of some dataclasses.

    Attributes:
        by_flag: Flags as argparse's actions.
        known: Names of the options.
        needed: Names of those without a default.
    """

    def __init__(
        self, types: Sequence[type], is_brief: bool, *, prog: str, description: str | None, epilog: str | None
    ) -> None:
        is_brief = is_brief and sum(len(fields(kind)) for kind in types) > MOST_SHOWN
        epilog = f"{_EVERY_COMMAND}{_HELP_ALL if is_brief else ''}\n\n{epilog or ''}"
        columns = shutil.get_terminal_size(fallback=(MAX_WIDTH, 0)).columns
        layout: Any = partial(
            argparse.RawDescriptionHelpFormatter,
            max_help_position=min(34, columns // 3),
            width=min(columns, MAX_WIDTH) - 1,
        )
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False, formatter_class=layout)
        actions = [action for kind in types for action in add_arguments(self, kind, is_brief=is_brief)]
        self.by_flag = {flag: action for action in actions for flag in action.option_strings}
        options = [field for kind in types for field in fields(kind) if as_flag(field.name) in self.by_flag]
        self.known = [field.name for field in options]
        self.needed = [field.name for field in options if is_needed(field)]
        self.add_argument("--config", help=argparse.SUPPRESS)
        word = f"[{self.needed[0].upper()}] " if self.needed else ""
        self.usage = f"{prog} {word}[--config FILE.yaml] [options]"

    def read(self, argv: list[str]) -> dict[str, Any]:
        """Return the values of a command line and its recipe, by name."""
        parsed, rest = self.parse_known_args(self._spelled(argv))
        if unknown := [word.partition("=")[0] for word in rest if word.startswith("--")]:
            raise UserError(f"unknown flags {unknown}. {self._remedy(unknown)}")
        if rest and self.needed and self.needed[0] not in parsed:
            self.parse_args([f"--{self.needed[0]}", *rest], parsed)
        elif rest:
            self.error(f"unknown words {rest}")
        values = vars(parsed)
        if (recipe := values.pop("config")) is not None:
            values = self._read_recipe(recipe) | values
        if missing := [as_flag(name) for name in self.needed if values.get(name) is None]:
            self.error(f"required: {', '.join(missing)}")
        return values

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`.")

    def _spelled(self, argv: list[str]) -> list[str]:
        """Spell flags with hyphens, and a switch with its value as one word: `--bf16 no` as `--no-bf16`."""
        words: list[str] = []
        for word in argv:
            flag, equals, value = word.partition("=")
            before = self.by_flag.get(words[-1]) if words else None
            if isinstance(before, argparse.BooleanOptionalAction) and word.lower() in TRUTHS:
                words[-1] = before.option_strings[0 if TRUTHS[word.lower()] else 1]
            else:
                words.append(flag.replace("_", "-") + equals + value if word.startswith("--") else word)
        return words

    def _read_recipe(self, path: str) -> dict[str, Any]:
        try:
            recipe = {str(key): value for key, value in read_yaml(find_recipe(path), remedy=REPAIR).items()}
        except FileNotFoundError as error:
            raise UserError(f"--config names {path}, which does not exist.") from error
        if unknown := sorted(set(recipe) - set(self.known)):
            raise UserError(f"{path}: unknown keys {unknown}. {self._remedy(unknown)}")
        for key, value in recipe.items():
            items = value if isinstance(value, list) else [value]
            items = [expand_home(item) if isinstance(item, str) else item for item in items]
            takes_list = self.by_flag[as_flag(key)].nargs == "+" and value is not None
            recipe[key] = items if takes_list or isinstance(value, list) else items[0]
        return recipe

    def _remedy(self, words: list[str]) -> str:
        if not self.known:
            return f"`{self.prog}` takes no options."
        keys = [word.removeprefix("--").replace("-", "_") for word in words]
        known = ", ".join(sorted(self.known)) if len(self.known) <= 40 else f"see `{self.prog} --help-all`"
        spell = as_flag if words[0].startswith("--") else str
        return f"{did_you_mean(keys, self.known, spell=spell)}Known: {known}."


# Text, not flags of the parser: `--debug` is taken off before it sees the line. TrainingArguments has its own `debug`.
_EVERY_COMMAND = """every command:
  --config FILE.yaml      read options from a YAML file of `key: value` lines, such as `max_usd: 20`; flags override it
  --debug                 show the full traceback of an error"""
_HELP_ALL = "\n  --help-all              show all options"
