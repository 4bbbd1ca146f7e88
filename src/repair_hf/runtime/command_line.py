"""Parse a command line and a recipe into dataclasses of options.

Flags beat `--config FILE.yaml`, which beats the defaults. An unknown key or flag is an error.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from repair_hf.runtime.files import REPAIR, read_yaml, shipped
from repair_hf.runtime.flags import Help, add_arguments
from repair_hf.runtime.options import UserError, did_you_mean, is_needed

MOST_SHOWN = 21  # options; the short help of a command with more of them shows the main ones


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

    `argv` holds the words after `prog`, such as `repair-hf mine`. A first word without a flag is the value of the
    first option without a default: `show runs/records` is `show --records runs/records`. With `is_brief` there are
    the main options alone: for a short help.

    Raises:
        UserError: If a key, flag or value is unknown or invalid, or a required one is missing.
    """
    parser = _Parser(types, is_brief, prog=prog, description=description, epilog=epilog)
    if argv and not argv[0].startswith("-") and parser.first_needed is not None:
        argv = [f"--{parser.first_needed}", *argv]
    config, argv = _take_config(list(argv))
    if config is not None:
        parser.read_recipe(config)
    parser.refuse_unknown_flags(argv)
    try:
        return parser.fill(argv)
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
    found = shipped("recipes").joinpath(*parts)
    return found if parts and found.exists() else path


def _take_config(argv: list[str]) -> tuple[str | None, list[str]]:
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    reader.add_argument("--config")
    try:
        found, rest = reader.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise UserError(f"{error}; give the path of a YAML file.") from error
    return found.config, rest


class _Parser(argparse.ArgumentParser):
    """A parser of dataclasses that raises `UserError` instead of exiting, and reads recipes."""

    def __init__(
        self, types: Sequence[type], is_brief: bool, *, prog: str, description: str | None, epilog: str | None
    ) -> None:
        is_brief = is_brief and sum(len(fields(kind)) for kind in types) > MOST_SHOWN
        epilog = f"{_EVERY_COMMAND}{_HELP_ALL if is_brief else ''}\n\n{epilog or ''}"
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False, formatter_class=Help)
        self.types = types
        actions = [action for each in types for action in add_arguments(self, each, is_brief=is_brief)]
        self.by_flag = {flag: action for action in actions for flag in action.option_strings}
        self.known: dict[str, Field] = {f.name: f for t in types for f in fields(t) if f"--{f.name}" in self.by_flag}
        self.first_needed = next((name for name, field in self.known.items() if is_needed(field)), None)
        word = "" if self.first_needed is None else f"[{self.first_needed.upper()}] "
        self.usage = f"{prog} {word}[--config FILE.yaml] [options]"

    def fill(self, argv: list[str]) -> tuple:
        """Return an instance of each dataclass."""
        values = vars(self.parse_args(argv))
        return tuple(
            each(**{field.name: values[field.name] for field in fields(each) if field.name in values})
            for each in self.types
        )

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`.")

    def refuse_unknown_flags(self, argv: list[str]) -> None:
        """Report a misspelt flag; argparse would first report the required option that it was meant to be."""
        flags = [word.split("=")[0] for word in argv if word.startswith("--")]
        if unknown := [flag for flag in flags if flag not in {"--help", *self.by_flag}]:
            raise UserError(f"unknown flags {unknown}. {self._remedy(unknown)}")

    def read_recipe(self, path: str) -> None:
        """Take the values of a recipe as defaults; flags override them."""
        try:
            recipe = {str(key): value for key, value in read_yaml(find_recipe(path), remedy=REPAIR).items()}
        except FileNotFoundError as error:
            raise UserError(f"--config names {path}, which does not exist.") from error
        if unknown := sorted(set(recipe) - set(self.known)):
            raise UserError(f"{path}: unknown keys {unknown}. {self._remedy(unknown)}")
        for key, value in recipe.items():
            action = self.by_flag[f"--{key}"]
            if value is None and is_needed(self.known[key]):
                raise UserError(f"`{key}` is empty in the recipe, and it has no default; give it a value.")
            if value is None and self.get_default(key) is not None:
                raise UserError(f"`{key}` is empty in the recipe; give it a value, or leave the line out.")
            if isinstance(value, list) and action.nargs != "+":
                if len(value) != 1:
                    raise UserError(f"{path}: `{key}` takes one value, got the list {value}.")
                value = value[0]
            items = value if isinstance(value, list) else [value]
            found = [None if value is None else self._read(path, action, item) for item in items]
            self.set_defaults(**{key: found if action.nargs == "+" and value is not None else found[0]})
            action.required = False

    def _read(self, path: str, action: argparse.Action, item: Any) -> Any:
        """Convert one value of a recipe as the word of a command line is converted."""
        key, is_switch = action.dest, action.const is True
        if is_switch and isinstance(item, bool):
            return item
        if isinstance(item, bool | None) and action.type not in (int, float):
            word = {True: "yes", False: "no", None: "null"}[item]
            raise UserError(f"{path}: `{key}` is read as {item} by YAML; write it in quotes, such as '{word}'.")
        if isinstance(item, dict):
            return item
        try:
            read: Any = action.type or str
            found = read(str(item))
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise UserError(f"{path}: `{key}` cannot be {item!r}: {error}.") from error
        if action.choices is not None and found not in action.choices:
            raise UserError(f"{path}: `{key}` must be {' or '.join(map(str, action.choices))}, got {item!r}.")
        return found

    def _remedy(self, words: list[str]) -> str:
        if not self.known:
            return f"`{self.prog}` takes no options."
        keys = [word.removeprefix("--").replace("-", "_") for word in words]
        known = ", ".join(sorted(self.known)) if len(self.known) <= 40 else f"see `{self.prog} --help-all`"
        spell = as_flag if words[0].startswith("--") else str
        return f"{did_you_mean(keys, self.known, spell=spell)}Known: {known}."


def as_flag(name: str) -> str:
    """Spell the name of an option as its flag."""
    return "--" + name.replace("_", "-")


# Text, not flags of the parser: both are taken off before it sees the line, and TrainingArguments has its own `debug`.
_EVERY_COMMAND = """every command:
  --config FILE.yaml      read options from a YAML file of `key: value` lines, such as `max_usd: 20`; flags override it
  --debug                 show the full traceback of an error"""
_HELP_ALL = "\n  --help-all              show all options"
