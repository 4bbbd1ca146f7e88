"""Parse a command line and a recipe into dataclasses of options, and write options as flags again.

Flags beat `--config FILE.yaml`, which beats the defaults. An unknown key or flag is an error.
"""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, NoReturn

from repair_hf.runtime.flags import Help, add_arguments, add_main_arguments, default_of, is_needed
from repair_hf.runtime.options import SEEDS, UserError
from repair_hf.runtime.recipes import find_recipe
from repair_hf.runtime.texts import read_yaml


def parse(
    types: Sequence[type],
    argv: Sequence[str],
    prog: str,
    *,
    description: str | None = None,
    epilog: str | None = None,
    only: Sequence[str] = (),
) -> tuple:
    """Fill each dataclass of `types` from the command line `argv`.

    `argv` holds the words after `prog`, such as `repair-hf mine`. A first word without a flag is the value of the
    first option without a default: `show runs/records` is `show --records runs/records`. With `only` there are no
    options but these, in this order: for a short help.

    Raises:
        UserError: If a key, flag or value is unknown or invalid, or a required one is missing.
    """
    parser = _Parser(types, only, prog=prog, description=description, epilog=epilog)
    if argv and not argv[0].startswith("-") and parser.first_needed is not None:
        argv = [f"--{parser.first_needed}", *argv]
    config, argv = _take_config(list(argv))
    recipe = [] if config is None else parser.recipe_as_flags(config)
    parser.refuse_unknown_flags(argv)
    try:
        return parser.fill([*recipe, *argv])
    except UserError:
        raise
    except ValueError as error:  # a dataclass's own check in __post_init__
        raise UserError(str(error)) from error


def as_flags(options: Any) -> list[str]:
    """Return the words of a command line that give a dataclass the values of `options`; defaults are left out."""
    values = {each.name: vars(options)[each.name] for each in fields(options)}
    return flags({each.name: values[each.name] for each in fields(options) if values[each.name] != default_of(each)})


def flags(values: Mapping[str, Any]) -> list[str]:
    """Return values by option name as the words of a command line; None is left out."""
    words = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, dict):
            words.append(f"{flag}={json.dumps(value)}")
        elif value is not None:
            words += [flag, *map(str, value if isinstance(value, list) else [value])]
    return words


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
        self, types: Sequence[type], only: Sequence[str], *, prog: str, description: str | None, epilog: str | None
    ) -> None:
        epilog = f"{_EVERY_COMMAND}{_HELP_ALL if only else ''}\n\n{epilog or ''}"
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False, formatter_class=Help)
        self.types = types
        if only:
            actions = add_main_arguments(self, types, only)
        else:
            actions = [action for each in types for action in add_arguments(self, each)]
        self.by_flag = {flag: action for action in actions for flag in action.option_strings}
        self.known: dict[str, Field] = {f.name: f for t in types for f in fields(t) if f"--{f.name}" in self.by_flag}
        self.first_needed = next((name for name, field in self.known.items() if is_needed(field)), None)
        word = "" if self.first_needed is None else f"[{self.first_needed.upper()}] "
        self.usage = f"{prog} {word}[--config FILE.yaml] [options]"

    def fill(self, argv: list[str]) -> tuple:
        """Return an instance of each dataclass."""
        values = vars(self.parse_args(argv))
        if not 0 <= values.get("seed", 0) < SEEDS:  # here, because transformers declares the seed of training
            self.error(f"`seed` must lie between 0 and {SEEDS - 1}, got {values['seed']}")
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

    def recipe_as_flags(self, path: str) -> list[str]:
        """Turn a recipe into flags, so that one set of checks serves both."""
        recipe = _read_recipe(path)
        if unknown := sorted(set(recipe) - set(self.known)):
            raise UserError(f"{path}: unknown keys {unknown}. {self._remedy(unknown)}")
        words: list[str] = []
        for key, value in recipe.items():
            action = self.by_flag[f"--{key}"]
            if value is None or value == []:  # no flag can express these
                if is_needed(self.known[key]):
                    raise UserError(f"`{key}` is empty in the recipe, and it has no default; give it a value.")
                if value is None and self.get_default(key) is not None:
                    raise UserError(f"`{key}` is empty in the recipe; give it a value, or leave the line out.")
                self.set_defaults(**{key: value})
            elif isinstance(value, bool) and action.nargs is None and action.type not in (int, float):
                word = "yes" if value else "no"
                raise UserError(f"{path}: `{key}` is read as {value} by YAML; write it in quotes, such as '{word}'.")
            elif isinstance(value, list):
                if len(value) > 1 and action.nargs != "+":
                    raise UserError(f"{path}: `{key}` takes one value, got the list {value}.")
                words += [f"--{key}", *map(str, value)]
            elif isinstance(value, dict):
                words.append(f"--{key}={json.dumps(value)}")
            else:
                words.append(f"--{key}={value}")
        return words

    def _remedy(self, words: list[str]) -> str:
        if not self.known:
            return f"`{self.prog}` takes no options."
        keys = [word.removeprefix("--").replace("-", "_") for word in words]
        removed = {name: use for each in self.types for name, use in getattr(each, "_removed", {}).items()}
        if old := [f"`{key}` was removed: {removed[key]}" for key in keys if key in removed]:
            return "; ".join(old) + "."
        near = {key: difflib.get_close_matches(key, self.known, n=1) for key in keys}
        hints = [f"`{names[0]}` for `{key}`" for key, names in near.items() if names]
        meant = f"Did you mean {', '.join(hints)}? " if hints else ""
        known = ", ".join(sorted(self.known)) if len(self.known) <= 40 else f"see `{self.prog} --help-all`"
        return f"{meant}Known: {known}."


def _read_recipe(path: str) -> dict[str, Any]:
    try:
        recipe = read_yaml(find_recipe(path))
    except FileNotFoundError as error:
        raise UserError(f"--config names {path}, which does not exist.") from error
    if recipe is None:
        return {}
    if not isinstance(recipe, dict) or not all(isinstance(key, str) for key in recipe):
        raise UserError(f"{path} must hold `key: value` lines, one per option; got a {type(recipe).__name__}.")
    return recipe


# Text, not flags of the parser: both are taken off before it sees the line, and TrainingArguments has its own `debug`.
_EVERY_COMMAND = """every command:
  --config FILE.yaml      read options from a YAML file of `key: value` lines, such as `max_usd: 20`; flags override it
  --debug                 show the full traceback of an error"""
_HELP_ALL = "\n  --help-all              show all options"
